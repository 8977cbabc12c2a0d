"""The action gradients of the critics, and a mixin that extracts them from a TorchRL loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import dispatch
from torch import Tensor
from torchrl.objectives import REDQLoss, TD3BCLoss, TD3Loss, TQCLoss
from torchrl.objectives.common import LossModule

from torchrl_vmfer import arguments
from torchrl_vmfer._torchrl import TappedLoss
from torchrl_vmfer.directional import (
    Used,
    batch_weights,
    factor_and_length,
    mean_gradient,
    used_gradient,
)
from torchrl_vmfer.squashing import Directions, Squashing, make_squashing

UsedCritic: TypeAlias = Literal["first", "min", "mean"]
"""The critic e whose gradient moves the actor: the first, the one with the lowest value, or the
mean of all."""


def followed_critic(loss: LossModule) -> UsedCritic:
    """Returns the critic that the actor of a loss follows."""
    if isinstance(loss, (TD3Loss, TD3BCLoss)):
        return getattr(loss, "objective", "first")
    return "mean" if isinstance(loss, (REDQLoss, TQCLoss)) else "min"


def resolved_critic(used: UsedCritic, loss: LossModule, gradients: Tensor, values: Tensor) -> Used:
    """Replaces ``"min"`` by the critic with the lowest value, and the mean of some by its gradient.

    If the loss has a ``target_count``, only so many critics, counted from the first, are compared.
    If the actor follows a mean, it is the mean of these critics.
    """
    count = getattr(loss, "target_count", len(values))
    if used == "min":
        return values[:count].argmin(0)
    if used == "mean" and count < len(gradients) and followed_critic(loss) == "mean":
        return mean_gradient(gradients[:count])
    return used


def directed(loss: LossModule, gradients: Tensor, action: Tensor | TensorDictBase) -> Tensor:
    """Converts gradients ``[N, *batch, action]`` to the variable that the loss specifies."""
    squashing = getattr(loss, "squashing", None)
    if squashing is None:
        return gradients
    leaves = [leaf.flatten(gradients.ndim - 2) for leaf in action_leaves(action).values()]
    return gradients * squashing.slope(torch.cat(leaves, -1))


def linearized_values(
    critics: Callable[[TensorDictBase], TensorDictBase],
    inputs: TensorDictBase,
    *,
    action_key: NestedKey,
    value_key: NestedKey,
    mean: bool = False,
    at: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the values of an ensemble, linear in its inputs, and each critic's action gradient.

    Each critic has its own copy of the action, so one vector-Jacobian product of the batched
    ensemble gives all gradients g_i. At the current inputs, Q_i(a) = Q_i + (a - a₀)ᵀg_i
    then has the value and the gradient of the critics but does not keep their graph: any loss
    built on it propagates exactly g_e to the actor, and nothing to the critics.

    Args:
        critics: the batched critics, from ``[N, *batch]`` inputs to values ``[N, *batch, K]``: one
            for each critic, or K quantiles, whose mean is then Q_i.
        inputs: their inputs, expanded to a batch size ``[N, *batch]``.
        action_key: the action, a tensor or a TensorDict of tensors.
        value_key: the value.
        mean: whether the loss averages over the batch. Gradients then pass through the critics
            with the same weight as in a plain backward pass, so that the actor gradient is
            bitwise equal to that of a plain backward pass.
        at: the action at which to evaluate the critics, ``[N, *batch, action]``, if it differs
            from the one in ``inputs``. The action in ``inputs`` still receives the gradient.

    Returns:
        the values ``[N, *batch, K]``, differentiable with respect to the inputs, and the
        gradients ``[N, *batch, action]`` of the losses l_i = -Q_i with respect to the action. The
        gradients of a composite action are concatenated in the order of :func:`action_leaves`.
    """
    action = action_leaves(inputs.get(action_key))
    keys = [unravel_key((action_key, *name)) for name in action]
    others = [key for key in inputs.keys(True, True) if inputs.get(key).requires_grad]
    keys += [key for key in others if key not in keys]
    origins = [inputs.get(key) for key in keys]
    points = [origin.detach() for origin in origins]
    if at is not None:
        points[: len(action)] = action_leaves(at).values()

    def values_at(*points: Tensor) -> Tensor:
        perturbed = inputs.copy()
        for key, point in zip(keys, points, strict=True):
            perturbed.set(key, point)
        return critics(perturbed).get(value_key)

    # No graph of the critics outlives this block.
    with torch.no_grad():
        values, pull_back = torch.func.vjp(values_at, *points)  # type: ignore[misc]
        # In half precision, a weight of 1/B would make gradients underflow.
        is_half = any(tensor.dtype.itemsize < 4 for tensor in (values, *points))
        size, count = max(1, values[0, ..., 0].numel()), values.shape[-1]
        weight = values.new_tensor(-1 / size if mean and not is_half else -1)
        gradients = [_at_least_single(g) for g in pull_back((weight / count).expand_as(values))]
    # A backward pass multiplies the values below by the scale of the loss, which often
    # overflows in half precision.
    values, weight = _at_least_single(values), _at_least_single(weight)
    for origin, gradient in zip(origins, gradients, strict=True):
        slope = (origin - origin.detach()) * gradient
        # Dividing by the same number that the backward pass multiplies with avoids rounding errors.
        values = values + slope.flatten(values.ndim - 1).sum(-1, keepdim=True) / weight
    of_action = [gradient.flatten(values.ndim - 1) for gradient in gradients[: len(action)]]
    return values, torch.cat(of_action, -1) / -weight


def action_leaves(action: Tensor | TensorDictBase) -> dict[tuple[str, ...], Tensor]:
    """The tensors of an action by name: a single unnamed one, or those of a TensorDict, sorted.

    Omits the discrete parts of a composite action, which have no gradient.
    """
    if isinstance(action, Tensor):
        return {(): action}
    names = (name if isinstance(name, tuple) else (name,) for name in action.keys(True, True))
    leaves = {name: action.get(name) for name in sorted(names)}
    return {name: leaf for name, leaf in leaves.items() if leaf.is_floating_point()}


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


class GradientTap(TappedLoss):
    """Intercepts the calls of a TorchRL loss to its critics and keeps the action gradients.

    TorchRL's losses call their critics through one batched callable, which :meth:`critics`
    replaces. It distinguishes three uses: the actor loss, the TD target, and the predicted value.
    A loss may override :meth:`perturbed` and :meth:`loss_gradients`. The arguments are described in
    :class:`~torchrl_vmfer.VMFTD3Loss` and :class:`~torchrl_vmfer.VMFSACLoss`.
    """

    critic_loss_name: ClassVar[str]  # TorchRL's method for the critic loss
    # The policy's action in the current actor_loss, and the values [N, *batch] of the critics and
    # the gradients [N, *batch, action] of l_i = -Q_i there.
    tapped_action: Tensor | TensorDictBase
    tapped_values: Tensor
    tapped_gradients: Tensor
    squashing: Squashing | None
    _in_actor_loss = False
    _reduces_actor_loss = False  # whether the next loss to reduce is the actor's
    _weighted_metadata: dict[str, Tensor] | None = None  # of the current actor_loss
    _report: dict[str, Tensor] | None = None
    selected_out_keys: list[NestedKey] | None = None  # those of select_out_keys

    def __init__(
        self,
        *args: Any,
        num_target_critics: int | None = 2,
        measure: bool = True,
        used: UsedCritic | None = None,
        directions: Directions = "action",
        gradient_norm: bool = False,
        weighting: float = arguments.WEIGHTING.default,
        **kwargs: Any,
    ) -> None:
        self.used = used or followed_critic(self)
        arguments.USED.check("used", self.used)
        arguments.DIRECTIONS.check("directions", directions)
        arguments.WEIGHTING.check("weighting", weighting)
        if num_target_critics is not None:  # None for all
            arguments.TARGET_CRITICS.check("num_target_critics", num_target_critics)
        self.num_target_critics = num_target_critics
        self.weighting = float(weighting)
        self.measure, self.gradient_norm = measure or weighting != 0, gradient_norm
        super().__init__(*args, **kwargs)
        if measure and self.num_qvalue_nets == 1:
            warnings.warn(
                f"{type(self).__name__} has one critic, so all its factors equal e, and vMFER "
                "samples uniformly: pass num_qvalue_nets=2 or more, or measure=False.",
                stacklevel=3,
            )
        self.squashing = None
        if directions == "pre_tanh":
            self.squashing = make_squashing(self, kwargs.get("action_spec"))

    @property
    def target_count(self) -> int:
        """The number of critics that form the TD target."""
        return min(self.num_target_critics or self.num_qvalue_nets, self.num_qvalue_nets)

    @property
    def taps(self) -> bool:
        """Whether ``actor_loss`` needs the gradient of each critic."""
        return self.measure or self.gradient_norm

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that ``forward`` returns: all of them, or the selected ones."""
        return self.selected_out_keys or self._all_out_keys()

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self.selected_out_keys = None if keys == self._all_out_keys() else keys

    def _all_out_keys(self) -> list[NestedKey]:
        added = ["vmf_factor", "vmf_resultant_length"] if self.measure else []
        added += ["vmf_gradient_norm"] if self.gradient_norm else []
        added += ["vmf_weight"] if self.weighting else []
        return [*super().out_keys, *added]

    @property
    def keyword_out_keys(self) -> list[NestedKey]:
        """The keys that a call with keyword arguments returns: TorchRL's, or the selected ones."""
        return self.selected_out_keys or list(super().out_keys)

    @dispatch(dest="keyword_out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes TorchRL's losses and the metadata of :meth:`agreement`.

        A call with keyword arguments returns the tuple of :attr:`keyword_out_keys`.

        ``vmf_factor`` and ``vmf_gradient_norm`` are also written into the batch, as TorchRL writes
        the TD error, so that ``buffer.update_tensordict_priority(batch)`` finds the factor there.
        """
        report: dict[str, Tensor] = {}
        self._report = report
        try:
            losses = super().forward(tensordict)
        finally:
            self._report = None
        losses.update(report)
        for name in ("vmf_factor", "vmf_gradient_norm"):
            if name in report:
                tensordict.set(name, report[name])
        return losses

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the critic loss. This method has the same name in all losses."""
        return getattr(self, self.critic_loss_name)(tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes TorchRL's actor loss, with the factors and lengths as additional metadata."""
        if not self.taps:
            return super().actor_loss(tensordict)
        self._in_actor_loss = True
        try:
            loss, metadata = super().actor_loss(tensordict)
        finally:
            self._in_actor_loss = False
        added, self._weighted_metadata = self._weighted_metadata, None
        metadata = metadata | (added or self.tapped_metadata(tensordict))
        del self.tapped_action, self.tapped_values, self.tapped_gradients
        return loss, metadata

    def weighted(
        self, loss: Tensor, weights: Tensor | None, tensordict: TensorDictBase
    ) -> tuple[Tensor, Tensor | None]:
        """Adds the weights of ``weighting`` to the losses ``[*, *batch]`` of the actor."""
        if not self._reduces_actor_loss:
            return loss, weights
        self._reduces_actor_loss = False
        metadata = self.tapped_metadata(tensordict)
        weight = batch_weights(metadata["vmf_factor"], self.weighting)
        if weights is not None:
            weight = weight * weights / (weight * weights).mean()
        self._weighted_metadata = {**metadata, "vmf_weight": weight}
        if self._report is not None:
            self._report["vmf_weight"] = weight
        return loss, weight.expand_as(loss)

    def tapped_metadata(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Returns the metadata that the tap adds to those of TorchRL's actor loss."""
        return self.agreement(self.loss_gradients(tensordict))

    def agreement(self, gradients: Tensor) -> dict[str, Tensor]:
        """Returns metadata on how much the critics agree, and on what moves the actor."""
        metadata, values = {}, self.tapped_values
        gradients = directed(self, gradients, self.tapped_action)
        if self.measure:
            used = resolved_critic(self.used, self, gradients, values)
            factor, length = factor_and_length(gradients, used)
            metadata = {"vmf_factor": factor, "vmf_resultant_length": length}
        if self.gradient_norm:
            used = resolved_critic(followed_critic(self), self, gradients, values)
            gradient = used_gradient(gradients, used)
            metadata["vmf_gradient_norm"] = torch.linalg.vector_norm(gradient, dim=-1)
        if self._report is not None:
            self._report.update(metadata)
        return metadata

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Returns the values of the critics for the actor loss, the TD target or the prediction."""
        if self._in_actor_loss:
            return self.actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.target_count < self.num_qvalue_nets:
            params = params[: self.target_count]
            if not self.has_shared_inputs:
                tensordict = tensordict[: self.target_count]
        return self.stock_critics(tensordict, params)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Returns the values to maximize, linear in the action, and keeps their gradients."""
        inputs = tensordict
        if self.has_shared_inputs:
            inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        actions = inputs.get(self.tensor_keys.action).detach()
        self.tapped_action = actions[0]
        at = self.perturbed(self.tapped_action)  # the same point for all critics
        value_key = self.tensor_keys.state_action_value
        values, self.tapped_gradients = linearized_values(
            lambda inputs: self.paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=None if at is None else at.expand_as(actions),
        )
        self.tapped_values = values.detach().mean(-1)
        self._reduces_actor_loss = self.weighting != 0  # TorchRL's losses reduce it first
        if followed_critic(self) == "min":
            values = values[: self.target_count]
        return TensorDict({value_key: values}, [len(values), *inputs.batch_size[1:]])

    def perturbed(self, action: Any) -> Tensor | None:
        """The action ``[*batch, action]`` for the critics, or ``None`` for the policy's action."""
        return None

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of the losses l_i with respect to the action, ``[N, *batch, action]``."""
        return self.tapped_gradients


class AllCriticsTap(GradientTap):
    """A :class:`GradientTap` for losses whose TD target is defined over all critics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "num_target_critics" in kwargs:
            raise TypeError(
                f"All critics of {type(self).__name__} form the TD target: leave out "
                "num_target_critics."
            )
        super().__init__(*args, num_target_critics=None, **kwargs)
