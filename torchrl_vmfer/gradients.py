"""Per-critic action gradients, and the tap that takes them from a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import dispatch
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import TD3BCLoss, TD3Loss
from torchrl.objectives.common import LossModule

from torchrl_vmfer._torchrl import TappedLoss, paired_critics
from torchrl_vmfer.directional import factor_and_length

__all__ = ["GradientTap", "action_gradients", "action_leaves", "linearized_values"]


class GradientTap(TappedLoss):
    """Stands between a TorchRL loss and its critics, and keeps the gradients that pass.

    TorchRL's losses reach their critics through one batched callable, whose place
    :meth:`critics` takes. It tells its three uses apart: by the actor, for the TD target, and for
    the prediction that is compared with it. A loss says which critic is :attr:`used` by the
    actor, and may override :meth:`asked_at` and :meth:`loss_gradients`.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target;
            ``None`` for all of them.
        measure: whether ``actor_loss`` measures how much the critics agree.
        **kwargs: as in TorchRL's loss.

    Attributes:
        selected_out_keys: what ``select_out_keys`` chose, if it was called.
        used: the critic e whose gradient moves the actor: ``"first"``, ``"min"`` for the one
            with the lowest value, or ``"mean"`` for the mean of all.
        tapped_values: the critics' values ``[N, *batch]`` in the present ``actor_loss``.
        tapped_gradients: the gradients ``[N, *batch, action]`` of l_i = -Q_i there.
    """

    used: ClassVar[Literal["first", "min", "mean"]]
    tapped_values: Tensor
    tapped_gradients: Tensor
    _in_actor_loss = False
    _report: dict[str, Tensor] | None = None
    selected_out_keys: list[NestedKey] | None = None

    def __init__(
        self, *args: Any, num_target_critics: int | None = 2, measure: bool = True, **kwargs: Any
    ) -> None:
        if num_target_critics is not None and (
            not isinstance(num_target_critics, int) or num_target_critics < 1
        ):
            raise ValueError(
                "num_target_critics must be a whole number ≥ 1, or None for all critics, "
                f"got {num_target_critics}."
            )
        self.num_target_critics = num_target_critics
        self.measure = measure
        super().__init__(*args, **kwargs)

    @property
    def target_count(self) -> int:
        """The number of critics that form the TD target."""
        return min(self.num_target_critics or self.num_qvalue_nets, self.num_qvalue_nets)

    @property
    def stock_out_keys(self) -> list[NestedKey]:
        """What ``forward`` of the TorchRL loss returns."""
        return list(super().out_keys)

    @property
    def out_keys(self) -> list[NestedKey]:
        """What ``forward`` returns, or what was selected of it."""
        return self.selected_out_keys or self._all_out_keys()

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self.selected_out_keys = None if keys == self._all_out_keys() else keys

    def _all_out_keys(self) -> list[NestedKey]:
        own = ("vmf_factor", "vmf_resultant_length") if self.measure else ()
        return [*self.stock_out_keys, *own]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """TorchRL's losses, with the entries ``vmf_factor`` and ``vmf_resultant_length``.

        ``vmf_factor`` is also written into the batch, as TorchRL writes the TD error, so that
        ``buffer.update_tensordict_priority(batch)`` finds it there.
        """
        report: dict[str, Tensor] = {}
        self._report = report
        try:
            losses = super().forward(tensordict)
        finally:
            self._report = None
        if report:
            losses.update(report)
            tensordict.set("vmf_factor", report["vmf_factor"])
        return losses

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's actor loss, whose metadata gain ``vmf_factor`` and ``vmf_resultant_length``."""
        if not self.measure:
            return super().actor_loss(tensordict)
        self._in_actor_loss = True
        try:
            loss, metadata = super().actor_loss(tensordict)
        finally:
            self._in_actor_loss = False
        agreement = self.agreement(self.loss_gradients(tensordict), self.tapped_values)
        del self.tapped_values, self.tapped_gradients
        return loss, metadata | agreement

    def agreement(self, gradients: Tensor, values: Tensor) -> dict[str, Tensor]:
        """The metadata on the agreement of critics with some gradients and values."""
        used = self.used if self.used != "min" else values[: self.target_count].argmin(0)
        factor, length = factor_and_length(gradients, used)
        metadata = {"vmf_factor": factor, "vmf_resultant_length": length}
        if self._report is not None:
            self._report.update(metadata)
        return metadata

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics, for whatever use the loss makes of them."""
        if self._in_actor_loss:
            return self.actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.target_count < self.num_qvalue_nets:
            params = params[: self.target_count]
            if not self.has_shared_inputs:
                tensordict = tensordict[: self.target_count]
        return self.stock_critics(tensordict, params)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values that the actor climbs, linear in the action; their gradients are kept."""
        inputs = tensordict
        if self.has_shared_inputs:
            inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        value_key = self.tensor_keys.state_action_value
        values, self.tapped_gradients = linearized_values(
            lambda inputs: self.paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=self.asked_at(inputs.get(self.tensor_keys.action).detach()),
        )
        self.tapped_values = values.detach().squeeze(-1)
        if self.used == "min":
            values = values[: self.target_count]
        return TensorDict({value_key: values}, [len(values), *inputs.batch_size[1:]])

    def asked_at(self, action: Tensor) -> Tensor | None:
        """The action ``[N, *batch, action]`` to ask the critics at, if not the policy's own."""
        return None

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of the losses l_i with respect to the action, ``[N, *batch, action]``."""
        return self.tapped_gradients


def linearized_values(
    critics: Callable[[TensorDictBase], TensorDictBase],
    inputs: TensorDictBase,
    *,
    action_key: NestedKey,
    value_key: NestedKey,
    mean: bool = False,
    at: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The values of an ensemble, linear in its inputs, and each critic's action gradient.

    Each critic has its own copy of the action, so one vector-Jacobian product of the batched
    ensemble gives all gradients g_i. Around the present inputs Q_i(a) = Q_i + (a - a₀)ᵀg_i
    then has the value and the gradient of the critics without holding their graph: whatever
    loss is built on it sends exactly g_e to the actor, and nothing to the critics.

    Args:
        critics: the batched critics, from ``[N, *batch]`` inputs to ``[N, *batch, 1]`` values.
        inputs: their inputs, expanded to a batch size ``[N, *batch]``.
        action_key: the entry of the action, a tensor or a TensorDict of tensors.
        value_key: the entry of the value.
        mean: whether the loss is going to average over the batch. Gradients pass through the
            critics with the weight that they would have in a plain backward pass, which makes
            the actor's gradient equal to that one to the last bit.
        at: the action at which to ask the critics, ``[N, *batch, action]``, where it is not
            the one in ``inputs``. The latter still receives the gradient found there.

    Returns:
        the values ``[N, *batch, 1]``, differentiable with respect to the inputs, and the
        gradients ``[N, *batch, action]`` of the losses l_i = -Q_i with respect to the action;
        those of a composite action are concatenated in the order of :func:`action_leaves`.
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
        # In half precision a weight of 1/B would push gradients below the smallest number.
        is_half = any(tensor.dtype.itemsize < 4 for tensor in (values, *points))
        weight = values.new_tensor(-1 / max(1, values[0].numel()) if mean and not is_half else -1)
        gradients = [_at_least_single(g) for g in pull_back(weight.expand_as(values))]
    # A backward pass multiplies what follows by the scale of the loss, often more than the
    # largest number of half precision.
    values, weight = _at_least_single(values), _at_least_single(weight)
    for origin, gradient in zip(origins, gradients, strict=True):
        slope = (origin - origin.detach()) * gradient
        # Dividing by the very number the backward pass multiplies with leaves no rounding.
        values = values + slope.flatten(values.ndim - 1).sum(-1, keepdim=True) / weight
    of_action = [gradient.flatten(values.ndim - 1) for gradient in gradients[: len(action)]]
    return values, torch.cat(of_action, -1) / -weight


def action_leaves(action: Tensor | TensorDictBase) -> dict[tuple[str, ...], Tensor]:
    """The tensors of an action, by name: one without a name, or those of a TensorDict, sorted.

    Discrete parts of a composite action, which have no gradient, are left out.
    """
    if isinstance(action, Tensor):
        return {(): action}
    names = (name if isinstance(name, tuple) else (name,) for name in action.keys(True, True))
    leaves = {name: action.get(name) for name in sorted(names)}
    return {name: leaf for name, leaf in leaves.items() if leaf.is_floating_point()}


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def action_gradients(loss: LossModule, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Asks all critics of a loss at the action of its policy, in one pass.

    Args:
        loss: a TorchRL loss with an ``actor_network`` and an ensemble ``qvalue_network``.
        tensordict: a batch ``[*batch]`` with the observations that they read.

    Returns:
        the values ``[N, *batch]``, and the gradients ``[N, *batch, action]`` of l_i = -Q_i with
        respect to the action.
    """
    actor, critic = loss.actor_network, loss.qvalue_network
    action_key = loss.tensor_keys.action
    params = loss.qvalue_network_params.detach()
    observed = dict.fromkeys([*actor.in_keys, *critic.in_keys])
    # Not strict: a composite policy lists the parameters of its distribution as inputs.
    inputs = tensordict.select(*(key for key in observed if key != action_key), strict=False)
    with loss.actor_network_params.to_module(actor):
        if isinstance(loss, (TD3Loss, TD3BCLoss)) or not hasattr(actor, "get_dist"):
            with set_exploration_type(loss.deterministic_sampling_mode):
                inputs = actor(inputs)
        else:
            with set_exploration_type(ExplorationType.RANDOM):
                inputs.set(action_key, actor.get_dist(inputs).rsample())
    inputs = inputs.select(*critic.in_keys)
    ensemble = paired_critics(loss)
    with _evaluating(critic):
        values, gradients = linearized_values(
            lambda inputs: ensemble(inputs, params),
            inputs.expand(params.batch_size[0], *inputs.batch_size),
            action_key=action_key,
            value_key=loss.tensor_keys.state_action_value,
        )
    return values.mean(-1), gradients


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Measuring must not move the statistics of normalisation layers."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
