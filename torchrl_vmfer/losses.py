"""TD3 and SAC losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import dispatch, set_composite_lp_aggregate
from torch import Tensor
from torchrl.objectives import SACLoss, TD3Loss

from torchrl_vmfer._torchrl import temperature
from torchrl_vmfer.fast.accelerated import Accelerated
from torchrl_vmfer.fast.sac import FastSAC
from torchrl_vmfer.fast.td3 import FastTD3
from torchrl_vmfer.gradients import GradientTap, action_leaves

__all__ = ["VMFSACLoss", "VMFTD3Loss"]


class VMFTD3Loss(Accelerated, GradientTap, TD3Loss):
    """:class:`~torchrl.objectives.TD3Loss` whose actor loss also yields sampling factors.

    A drop-in replacement for TorchRL's loss. The metadata of ``actor_loss`` also contains
    ``"vmf_factor"``, the sampling factor p_j of each transition with e = the first critic
    (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``. ``forward`` returns
    both, lists them in ``out_keys``, and writes ``"vmf_factor"`` into the batch, next to the TD
    error, so that ``buffer.update_tensordict_priority(batch)`` finds it there.

    With two critics, loss values and gradients equal TorchRL's bit for bit. With more critics,
    TorchRL's TD target is the minimum over all of them, while this loss uses the minimum over the
    first two: extra critics measure the uncertainty and should not make the target more
    pessimistic. With ``num_target_critics=None`` the loss equals TorchRL's bit for bit, for any
    number of critics.

    The factors need no extra pass through the critics: they come from the forward and backward
    pass that computes the actor gradient. Computing them adds about 20 % to the time of an actor
    update.

    An action may be a TensorDict. Its direction is then computed from all its floating-point
    entries, concatenated in alphabetical order.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target, or
            ``None`` for all. The other critics learn from the same target and are used only to
            estimate the uncertainty.
        measure: if ``False``, behaves like TorchRL's loss, for an otherwise identical baseline.
        fast: if ``True``, computes the same results, up to rounding, with batched matrix products
            when the actor and the critics are stacks of linear layers and activations, such as the
            networks of TorchRL's scripts. Other networks, options and batches use TorchRL's
            general path, with one warning; ``fast_path`` gives the reason. (With
            ``measure=False``, the fast path evaluates only the first critic for the actor, and
            ``"state_action_value_actor"`` in the metadata has one row.)
        actor_noise: standard deviation of the noise that Algorithm 1 adds to the actions of the
            actor's batch. The default of 0 is plain TD3. The critics are evaluated at the noisy
            action, clipped to the bounds, and the actor receives the gradient at that action.
        actor_noise_clip: the maximum absolute value of the noise.
        **kwargs: as in TorchRL's loss.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.modules import MLP, ValueOperator
        >>> actor = TensorDictModule(
        ...     MLP(in_features=4, out_features=2, num_cells=[8]), ["observation"], ["action"]
        ... )
        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=1),
        ...                        in_keys=["observation", "action"])
        >>> loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> batch = TensorDict({"observation": torch.randn(5, 4)}, [5])
        >>> actor_loss, metadata = loss.actor_loss(batch)
        >>> metadata["vmf_factor"].shape
        torch.Size([5])
        >>> loss.out_keys[-2:]
        ['vmf_factor', 'vmf_resultant_length']
    """

    used = "first"
    fast_updates = FastTD3

    def __init__(
        self, *args: Any, actor_noise: float = 0.0, actor_noise_clip: float = 0.5, **kwargs: Any
    ) -> None:
        if not (0 <= actor_noise < math.inf and actor_noise_clip >= 0):
            raise ValueError(
                "actor_noise and actor_noise_clip must be numbers of at least 0, "
                f"got {actor_noise} and {actor_noise_clip}."
            )
        if actor_noise and not kwargs.get("measure", True):
            raise ValueError(f"actor_noise={actor_noise} requires measure=True.")
        self.actor_noise = float(actor_noise)
        self.actor_noise_clip = float(actor_noise_clip)
        super().__init__(*args, **kwargs)

    def perturbed(self, action: Tensor) -> Tensor:
        """Adds clipped noise to an action ``[*batch, A]`` and clips the result to the bounds."""
        if not self.actor_noise:
            return action
        noise = torch.randn_like(action) * self.actor_noise
        noise = noise.clamp(-self.actor_noise_clip, self.actor_noise_clip)
        return (action + noise).clamp(self.min_action, self.max_action)


class VMFSACLoss(Accelerated, GradientTap, SACLoss):
    """:class:`~torchrl.objectives.SACLoss` whose actor loss also yields sampling factors.

    A drop-in replacement for TorchRL's loss. The metadata of ``actor_loss`` also contains
    ``"vmf_factor"``, the sampling factor p_j of each transition with e = argmin_i Q_i
    (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``. ``forward`` returns
    both, lists them in ``out_keys``, and writes ``"vmf_factor"`` into the batch, next to the TD
    error, so that ``buffer.update_tensordict_priority(batch)`` finds it there.

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
        measure: if ``False``, behaves like TorchRL's loss, for an otherwise identical baseline.
        fast: if ``True``, computes the same results, up to rounding, with batched matrix products
            when the actor and the critics are stacks of linear layers and activations, such as the
            networks of TorchRL's scripts. Other networks, options and batches use TorchRL's
            general path, with one warning; ``fast_path`` gives the reason.
        entropy_gradient: if ``True``, x_i is the direction of α ∂log π/∂a - ∂Q_i/∂a, at the
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

    used = "min"
    fast_updates = FastSAC

    def __init__(self, *args: Any, entropy_gradient: bool = False, **kwargs: Any) -> None:
        self.entropy_gradient = entropy_gradient
        super().__init__(*args, **kwargs)

    @property
    def keyword_out_keys(self) -> list[NestedKey]:
        """The keys that a call with keyword arguments returns: TorchRL's, or the selected ones."""
        return self.selected_out_keys or self.stock_out_keys

    @dispatch(dest="keyword_out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes TorchRL's losses and the factors; with keyword arguments, TorchRL's tuple."""
        return super().forward(tensordict)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics whose minimum the actor maximizes."""
        if self.entropy_gradient:
            self._policy_action = tensordict.get(self.tensor_keys.action).detach()
        return super().actor_critics(tensordict, params)

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of -Q_i, or with ``entropy_gradient`` of α log π - Q_i."""
        if not self.entropy_gradient:
            return self.tapped_gradients
        with torch.no_grad(), self.actor_network_params.to_module(self.actor_network):
            policy = self.actor_network.get_dist(tensordict)
        action, gradients = self._policy_action, self.tapped_gradients
        del self._policy_action
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
        return temperature(self) * score + gradients
