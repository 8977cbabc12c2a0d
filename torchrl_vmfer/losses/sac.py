"""The losses of SAC and its relatives that also measure how much the critics agree."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import set_composite_lp_aggregate
from torch import Tensor
from torchrl.objectives import CQLLoss, CrossQLoss, SACLoss, TQCLoss

from torchrl_vmfer.gradients import AllCriticsTap, GradientTap, action_leaves


class VMFSACLoss(GradientTap, SACLoss):
    """:class:`~torchrl.objectives.SACLoss` whose actor loss also yields sampling factors.

    A drop-in replacement for TorchRL's loss. The metadata of ``actor_loss`` also contains
    ``"vmf_factor"``, the sampling factor p_j of each transition with e = argmin_i Q_i
    (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``. ``forward`` returns
    both and writes ``"vmf_factor"`` into the batch, as :class:`VMFTD3Loss` does.

    A call with keyword arguments returns TorchRL's tuple of five losses and statistics (six with a
    value network), so that existing code can unpack it;
    ``select_out_keys("loss_actor", ..., "vmf_factor")`` adds the factors.

    With two critics, loss values and gradients equal TorchRL's up to rounding. With more critics,
    TorchRL takes the minimum over all of them, while this loss by default uses the first two: extra
    critics measure the uncertainty and should not make the values more pessimistic. With
    ``num_target_critics=None`` the loss equals TorchRL's up to rounding, for any number of critics.

    As in :class:`VMFTD3Loss`, the factors need no extra pass through the critics, and an action may
    be a TensorDict.

    By default x_i is the direction of -∂Q_i/∂a. The paper's loss also contains α log π, whose
    gradient is the same for all critics. Near the bounds of a squashed action, this gradient grows
    without limit and dominates the critics' gradients, so the critics appear to agree no matter how
    much they differ.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target and
            the minimum that the actor maximizes, or ``None`` for all. The other critics learn
            from the same target and are used only to estimate the uncertainty.
        measure: as in :class:`VMFTD3Loss`, as are ``used`` and ``gradient_norm``.
        weighting: as in :class:`VMFTD3Loss`. To learn the temperature on the same distribution,
            multiply ``alpha_loss(log_prob)`` by ``"vmf_weight"``; ``forward`` does not.
        directions: as in :class:`VMFTD3Loss`. The bounds are those of the policy's ``TanhNormal``,
            or else of ``action_spec``.
        entropy_gradient: if ``True``, g_i is α ∂log π/∂a - ∂Q_i/∂a in directions and norms, at the
            cost of one more forward pass of the actor.
        **kwargs: as in TorchRL's loss.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import NormalParamExtractor, TensorDictModule
        >>> from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
        >>> network = torch.nn.Sequential(
        ...     MLP(in_features=4, out_features=4, num_cells=[8]), NormalParamExtractor()
        ... )
        >>> actor = ProbabilisticActor(
        ...     TensorDictModule(network, ["observation"], ["loc", "scale"]),
        ...     in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True,
        ... )
        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=1),
        ...                        in_keys=["observation", "action"])
        >>> loss = VMFSACLoss(actor, critic, target_entropy=-2.0)
        >>> batch = TensorDict({"observation": torch.randn(5, 4)}, [5])
        >>> actor_loss, metadata = loss.actor_loss(batch)
        >>> metadata["vmf_factor"].shape
        torch.Size([5])
    """

    def __init__(self, *args: Any, entropy_gradient: bool = False, **kwargs: Any) -> None:
        self.entropy_gradient = entropy_gradient
        super().__init__(*args, **kwargs)

    @property
    def critic_loss_name(self) -> str:  # type: ignore[override]
        """TorchRL's method for the critic loss, which depends on whether there is a V(s)."""
        return "qvalue_v2_loss" if self.value_network_params is None else "qvalue_v1_loss"

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of -Q_i, or with ``entropy_gradient`` of α log π - Q_i."""
        if not self.entropy_gradient:
            return self.tapped_gradients
        with torch.no_grad(), self.actor_network_params.to_module(self.actor_network):
            policy = self.actor_network.get_dist(tensordict)
        action, gradients = self.tapped_action, self.tapped_gradients
        leaves = action_leaves(action)

        def log_prob_at(*points: Tensor) -> Tensor:
            at = points[0]
            if not isinstance(action, Tensor):
                at = action.copy().update(dict(zip(leaves, points, strict=True)))
            with set_composite_lp_aggregate(True):
                return policy.log_prob(at)

        log_prob, pull_back = torch.func.vjp(log_prob_at, *leaves.values())  # type: ignore[misc]
        scores = pull_back(torch.ones_like(log_prob))
        score = torch.cat([score.flatten(gradients.ndim - 2) for score in scores], -1)
        # TorchRL's actor loss has clamped the temperature to its bounds.
        return self.log_alpha.detach().exp() * score + gradients


class VMFTQCLoss(AllCriticsTap, TQCLoss):
    """:class:`~torchrl.objectives.TQCLoss` whose actor loss also yields sampling factors.

    Truncated quantile critics. The actor maximizes the mean over all critics and quantiles, so g_i
    is the gradient of the mean of critic i's quantiles, and x_e the direction of the mean gradient.
    The spread of the quantiles models the randomness of returns, not disagreement between critics,
    so it does not affect the factors.

    The metadata of ``actor_loss`` also contains ``"vmf_factor"`` and ``"vmf_resultant_length"``,
    as for :class:`VMFSACLoss`. Loss values and gradients equal TorchRL's up to rounding. All
    critics form the TD target.

    The arguments are those of TorchRL's loss, and ``measure``, ``used``, ``directions``,
    ``gradient_norm`` and ``weighting`` of :class:`VMFSACLoss`.
    """

    critic_loss_name = "qvalue_v2_loss"


class VMFCrossQLoss(GradientTap, CrossQLoss):
    """:class:`~torchrl.objectives.CrossQLoss` whose actor loss also yields sampling factors.

    The factors, ``num_target_critics``, ``measure``, ``used``, ``directions``, ``gradient_norm``
    and ``weighting`` are those of :class:`VMFSACLoss`. With two critics, or with
    ``num_target_critics=None``, loss values and gradients equal TorchRL's up to rounding. As in
    TorchRL's loss, normalization layers of the critics are in evaluation mode in ``actor_loss`` and
    in training mode in ``qvalue_loss``, which evaluates the critics once for both the current and
    the next state. TorchRL's loss ignores importance weights.
    """

    critic_loss_name = "qvalue_loss"

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics. ``qvalue_loss`` evaluates current and next values together."""
        found = super().critics(tensordict, params)
        if params is not self.qvalue_network_params or self.target_count == self.num_qvalue_nets:
            return found
        current, following = found.get(self.tensor_keys.state_action_value).chunk(2, dim=1)
        # Critics outside the TD target repeat the first, which does not change the minimum.
        others = following[:1].expand(
            self.num_qvalue_nets - self.target_count, *following.shape[1:]
        )
        following = torch.cat([following[: self.target_count], others])
        return found.set(
            self.tensor_keys.state_action_value, torch.cat([current, following], dim=1)
        )


class VMFCQLLoss(GradientTap, CQLLoss):
    """:class:`~torchrl.objectives.CQLLoss` whose actor loss also yields sampling factors.

    Conservative Q-learning, for offline data. The factors, ``num_target_critics``, ``measure``,
    ``used``, ``directions``, ``gradient_norm`` and ``weighting`` are those of :class:`VMFSACLoss`.
    By default, loss values and gradients equal TorchRL's up to rounding. TorchRL's loss always has
    two critics, and ignores importance weights.

    The conservative term is TorchRL's ``cql_loss``, unchanged. In TorchRL 0.14, it differs from the
    paper's: its log-sum-exp runs over three actions (one random, one of the policy, and one of the
    policy in the next state, evaluated there), and is averaged over ``num_random`` such triples per
    state, instead of running over all ``3 * num_random`` actions of the state. It also builds
    matrices ``[B, B * num_random]``, so its memory grows with the square of the batch size B.
    """

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the TD loss of the critics plus the conservative term."""
        loss, metadata = self.q_loss(tensordict)
        conservative, _ = self.cql_loss(tensordict)
        return loss + conservative, metadata
