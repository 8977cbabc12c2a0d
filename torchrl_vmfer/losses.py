"""TD3 and SAC losses that also measure how much the critics agree, at no extra pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.objectives import AUTO_LOSS_MASK_KEYS, SACLoss, TD3Loss
from torchrl.objectives.utils import _vmap_func

from torchrl_vmfer.directional import directions, factor_and_length
from torchrl_vmfer.fast import FastSAC, FastTD3
from torchrl_vmfer.fast.plain_network import NotPlainError
from torchrl_vmfer.gradients import linearized_values

__all__ = ["VMFSACLoss", "VMFTD3Loss"]

# Entries that TorchRL's losses take account of and the fast path does not: masks, and the number
# of steps that a transition spans.
_NOT_FAST = (*AUTO_LOSS_MASK_KEYS, "steps_to_next_obs")
_NOT_FAST_ROOTS = {key if isinstance(key, str) else key[0] for key in _NOT_FAST}
_Critics = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]


if TYPE_CHECKING:
    from torchrl.objectives.common import LossModule as _Loss
else:
    # LossModule's metaclass would give the mixin a `forward` that hides the parent's.
    _Loss = object


class _GradientTap(_Loss):
    """Stands between a TorchRL loss and its critics, and keeps the gradients that pass.

    TorchRL's losses reach their critics through one batched callable, made by ``_make_vmap``.
    The losses below put :meth:`_critics` in its place, which tells its three uses apart: by the
    actor, for the TD target, and for the prediction that is compared with it.
    """

    # What a loss provides: its parent's batched critics, and critics of which the i-th reads the
    # i-th inputs.
    _stock_critics: _Critics
    _paired_critics: _Critics
    # What passed in the last use by the actor.
    _values: Tensor
    _gradients: Tensor

    def _actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values that the actor climbs, by means of :meth:`_tap`."""
        raise NotImplementedError

    def _target_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the first ``num_target_critics`` critics."""
        raise NotImplementedError

    def _used_critic(self) -> int | Tensor:
        """The critic e whose gradient moves the actor."""
        raise NotImplementedError

    def _make_fast_updates(self) -> FastTD3 | FastSAC:
        raise NotImplementedError

    def __init__(
        self,
        *args: Any,
        num_target_critics: int = 2,
        measure: bool = True,
        fast: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(num_target_critics, int) or num_target_critics < 1:
            raise ValueError(
                f"num_target_critics must be a whole number ≥ 1, got {num_target_critics}."
            )
        self.num_target_critics = num_target_critics
        self.measure = measure
        self.fast = fast
        self._fast: FastTD3 | FastSAC | None = None
        self._why_not_fast = ""
        self._in_actor_loss = False
        super().__init__(*args, **kwargs)

    def _fast_updates(self, tensordict: TensorDictBase) -> Any:
        """The fast path for a batch, or ``None`` where there is none."""
        if not self.fast or self._why_not_fast or not _is_plain(tensordict):
            return None
        if self._fast is None or not self._fast.is_current():
            try:
                self._fast = self._make_fast_updates()
            except NotPlainError as error:
                self._why_not_fast = str(error)
                return None
        return self._fast if self._fast.suits(tensordict) else None

    def _forget_fast_updates(self) -> None:
        self._fast, self._why_not_fast = None, ""

    def make_value_estimator(self, *args: Any, **kwargs: Any) -> Any:
        """As in TorchRL's loss."""
        self._forget_fast_updates()
        return super().make_value_estimator(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has parameters of its own.
        return self.__dict__ | {"_fast": None}

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        # `.to()` may put other tensors in the place of the parameters.
        self._forget_fast_updates()
        return super()._apply(*args, **kwargs)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's actor loss, whose metadata gain ``vmf_factor`` and ``vmf_resultant_length``."""
        fast = self._fast_updates(tensordict)
        if fast is not None:
            return fast.actor_loss(tensordict)
        if not self.measure:
            return super().actor_loss(tensordict)
        self._in_actor_loss = True
        try:
            loss, metadata = super().actor_loss(tensordict)
        finally:
            self._in_actor_loss = False
        gradients = self._loss_gradients(tensordict)
        factor, length = factor_and_length(directions(gradients), self._used_critic())
        del self._values, self._gradients
        return loss, metadata | {"vmf_factor": factor, "vmf_resultant_length": length}

    def _critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        if self._in_actor_loss:
            return self._actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.num_target_critics < self.num_qvalue_nets:
            return self._target_critics(tensordict, params)
        return self._stock_critics(tensordict, params)

    def _tap(
        self, inputs: TensorDictBase, params: TensorDictBase, at: Tensor | None = None
    ) -> TensorDictBase:
        """The critics' values ``[N, *batch, 1]``; what passed is kept for :meth:`actor_loss`."""
        value_key = self.tensor_keys.state_action_value
        values, self._gradients = linearized_values(
            lambda inputs: self._paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=at,
        )
        self._values = values.detach().squeeze(-1)
        return TensorDict({value_key: values}, inputs.batch_size)

    def _loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients g_i of the losses l_i with respect to the action."""
        return self._gradients


def _is_plain(tensordict: TensorDictBase) -> bool:
    """Whether a batch is one of single steps, all of which count, in full precision."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    if tensordict.ndim != 1:
        return False
    return _NOT_FAST_ROOTS.isdisjoint(tensordict.keys()) or all(
        tensordict.get(key, None) is None for key in _NOT_FAST
    )


class VMFTD3Loss(_GradientTap, TD3Loss):
    """:class:`~torchrl.objectives.TD3Loss` whose actor loss also yields sampling factors.

    With the defaults, loss values and gradients are TorchRL's, bit for bit. The metadata of
    ``actor_loss`` gain ``"vmf_factor"``, the sampling factor p_j of each transition with e = the
    first critic (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``. They
    come out of the forward and backward pass of the critics that the actor's gradient takes
    anyway.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target.
            Critics beyond them learn from the same target and serve the uncertainty only.
        measure: ``False`` makes it TorchRL's loss, for a baseline that differs in nothing else.
        fast: computes the same, up to rounding, as batched matrix products where actor and
            critics are plain stacks of linear layers and activations; other networks go by
            TorchRL's path. (Without ``measure``, the actor then asks only the first critic, and
            ``"state_action_value_actor"`` of the metadata has one row.)
        actor_noise: standard deviation of the noise by which Algorithm 1 perturbs the actions
            of the actor's batch. The default of 0 is plain TD3. The critics are asked at the
            noisy action, kept within the bounds; the actor receives the gradient found there.
        actor_noise_clip: the noise is clipped to this absolute value.
        **kwargs: as in TorchRL's loss.

    Examples:
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
    """

    _vmap_qvalue_network00: _Critics

    def __init__(
        self, *args: Any, actor_noise: float = 0.0, actor_noise_clip: float = 0.5, **kwargs: Any
    ) -> None:
        if not (0 <= actor_noise < math.inf and actor_noise_clip >= 0):
            raise ValueError(
                "actor_noise and actor_noise_clip must be numbers of at least 0, "
                f"got {actor_noise} and {actor_noise_clip}."
            )
        if actor_noise and not kwargs.get("measure", True):
            raise ValueError(f"actor_noise={actor_noise} needs measure=True.")
        self.actor_noise = float(actor_noise)
        self.actor_noise_clip = float(actor_noise_clip)
        super().__init__(*args, **kwargs)

    def _make_vmap(self) -> None:
        super()._make_vmap()
        self._stock_critics = self._paired_critics = self._vmap_qvalue_network00
        self._vmap_qvalue_network00 = self._critics

    def _make_fast_updates(self) -> FastTD3:
        return FastTD3(self)

    def value_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's loss of the critics."""
        fast = self._fast_updates(tensordict)
        return super().value_loss(tensordict) if fast is None else fast.value_loss(tensordict)

    def perturbed(self, action: Tensor) -> Tensor:
        """An action ``[*batch, A]`` with the noise of ``actor_noise``, within the bounds."""
        if not self.actor_noise:
            return action
        noise = torch.randn_like(action) * self.actor_noise
        noise = noise.clamp(-self.actor_noise_clip, self.actor_noise_clip)
        return (action + noise).clamp(self.min_action, self.max_action)

    def _actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        at = None
        if self.actor_noise:
            action = tensordict.get(self.tensor_keys.action).detach()
            at = self.perturbed(action[0]).expand_as(action)
        return self._tap(tensordict, params, at)

    def _target_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        k = self.num_target_critics
        return self._stock_critics(tensordict[:k], params[:k])

    def _used_critic(self) -> int:
        return 0


class VMFSACLoss(_GradientTap, SACLoss):
    """:class:`~torchrl.objectives.SACLoss` whose actor loss also yields sampling factors.

    Loss values and gradients are TorchRL's up to rounding. The metadata of ``actor_loss`` gain
    ``"vmf_factor"``, the sampling factor p_j of each transition with e = argmin_i Q_i
    (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``.

    By default x_i is the direction of -∂Q_i/∂a. The paper's loss also holds α log π, whose
    gradient is the same for all critics: near the bounds of a squashed action it grows without
    limit and swamps the critics, which then seem to agree however much they differ.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target and
            the minimum that the actor climbs. Critics beyond them learn from the same target
            and serve the uncertainty only.
        measure: ``False`` makes it TorchRL's loss, for a baseline that differs in nothing else.
        fast: computes the same, up to rounding, as batched matrix products where actor and
            critics are plain stacks of linear layers and activations; other networks go by
            TorchRL's path.
        entropy_gradient: if ``True``, x_i is the direction of α ∂log π/∂a - ∂Q_i/∂a, at the
            cost of one more forward pass of the actor.
        **kwargs: as in TorchRL's loss.

    Examples:
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

    _vmap_qnetworkN0: _Critics  # noqa: N815, the name is TorchRL's

    def __init__(self, *args: Any, entropy_gradient: bool = False, **kwargs: Any) -> None:
        self.entropy_gradient = entropy_gradient
        super().__init__(*args, **kwargs)

    def _make_fast_updates(self) -> FastSAC:
        return FastSAC(self)

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's loss of the critics."""
        fast = self._fast_updates(tensordict)
        return (
            super().qvalue_v2_loss(tensordict) if fast is None else fast.qvalue_v2_loss(tensordict)
        )

    def _make_vmap(self) -> None:
        super()._make_vmap()
        self._stock_critics = self._vmap_qnetworkN0
        self._paired_critics = _vmap_func(
            self.qvalue_network,
            randomness=self.vmap_randomness,
            pseudo_vmap=self.deactivate_vmap,
        )
        self._vmap_qnetworkN0 = self._critics

    def _actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        if self.entropy_gradient:
            self._action = tensordict.get(self.tensor_keys.action).detach()
        inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        return self._tap(inputs, params)[: self.num_target_critics]

    def _target_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        return self._stock_critics(tensordict, params[: self.num_target_critics])

    def _used_critic(self) -> Tensor:
        return self._values[: self.num_target_critics].argmin(0)

    def _loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        if not self.entropy_gradient:
            return self._gradients
        with torch.no_grad(), self.actor_network_params.to_module(self.actor_network):
            policy = self.actor_network.get_dist(tensordict)
        log_prob, pull_back = torch.func.vjp(policy.log_prob, self._action)  # type: ignore[misc]
        (score,) = pull_back(torch.ones_like(log_prob))
        del self._action
        return self._alpha * score.reshape(self._gradients.shape[1:]) + self._gradients
