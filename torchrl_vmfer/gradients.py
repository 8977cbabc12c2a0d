"""Per-critic action gradients, and a mixin that extracts them from a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import dispatch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import REDQLoss, TD3BCLoss, TD3Loss, TQCLoss
from torchrl.objectives.common import LossModule

from torchrl_vmfer._torchrl import TappedLoss, paired_critics
from torchrl_vmfer.directional import Used, factor_and_length
from torchrl_vmfer.networks import evaluating

__all__ = [
    "AllCriticsTap",
    "GradientTap",
    "UsedCritic",
    "action_gradients",
    "action_leaves",
    "checked_critic",
    "followed_critic",
    "linearized_values",
    "resolved_critic",
]

UsedCritic: TypeAlias = Literal["first", "min", "mean"]
"""The critic e whose gradient moves the actor: the first, the one with the lowest value, or the
mean of all."""


def followed_critic(loss: LossModule) -> UsedCritic:
    """Returns the critic that the actor of a TorchRL loss follows."""
    if isinstance(loss, (TD3Loss, TD3BCLoss)):
        return "first"
    return "mean" if isinstance(loss, (REDQLoss, TQCLoss)) else "min"


def checked_critic(used: str) -> UsedCritic:
    """Validates ``used`` and returns it."""
    if used not in get_args(UsedCritic):
        raise ValueError(f"used must be 'first', 'min' or 'mean', got {used!r}.")
    return cast(UsedCritic, used)


def resolved_critic(used: UsedCritic, values: Tensor, target_count: int | None = None) -> Used:
    """Replaces ``"min"`` by the index of the critic with the lowest value.

    Args:
        used: the critic e.
        values: the values of the critics, ``[N, *batch]``.
        target_count: how many critics, counted from the first, are compared; ``None`` for all.
    """
    return values[:target_count].argmin(0) if used == "min" else used


class GradientTap(TappedLoss):
    """Intercepts the calls of a TorchRL loss to its critics and keeps the action gradients.

    TorchRL's losses call their critics through one batched callable, which :meth:`critics`
    replaces. It distinguishes three uses: the actor loss, the TD target, and the predicted value.
    A loss may override :meth:`perturbed` and :meth:`loss_gradients`.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target;
            ``None`` for all of them.
        measure: whether ``actor_loss`` measures how much the critics agree.
        used: the critic e of the factors: ``"first"``, ``"min"`` for the one with the lowest
            value, or ``"mean"`` for the mean of all. By default, the one whose gradient moves the
            actor of the loss. It does not change the loss.
        **kwargs: as in TorchRL's loss.

    Attributes:
        critic_loss_name: the name of TorchRL's method for the critic loss.
        selected_out_keys: the keys chosen by ``select_out_keys``, or ``None`` if it was not called.
        tapped_values: the critics' values ``[N, *batch]`` in the current ``actor_loss`` call.
        tapped_gradients: the gradients ``[N, *batch, action]`` of l_i = -Q_i in that call.
    """

    critic_loss_name: ClassVar[str]
    actor_noise = 0.0
    tapped_values: Tensor
    tapped_gradients: Tensor
    _in_actor_loss = False
    _report: dict[str, Tensor] | None = None
    selected_out_keys: list[NestedKey] | None = None

    def __init__(
        self,
        *args: Any,
        num_target_critics: int | None = 2,
        measure: bool = True,
        used: UsedCritic | None = None,
        **kwargs: Any,
    ) -> None:
        if num_target_critics is not None and (
            not isinstance(num_target_critics, int) or num_target_critics < 1
        ):
            raise ValueError(
                "num_target_critics must be an integer of at least 1, or None for all critics, "
                f"got {num_target_critics}."
            )
        self.num_target_critics = num_target_critics
        self.measure = measure
        self.used = checked_critic(used or followed_critic(self))
        super().__init__(*args, **kwargs)

    @property
    def target_count(self) -> int:
        """The number of critics that form the TD target."""
        return min(self.num_target_critics or self.num_qvalue_nets, self.num_qvalue_nets)

    @property
    def stock_out_keys(self) -> list[NestedKey]:
        """The keys that ``forward`` of the TorchRL loss returns."""
        return list(super().out_keys)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that ``forward`` returns: all of them, or the selected ones."""
        return self.selected_out_keys or self._all_out_keys()

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self.selected_out_keys = None if keys == self._all_out_keys() else keys

    def _all_out_keys(self) -> list[NestedKey]:
        own = ("vmf_factor", "vmf_resultant_length") if self.measure else ()
        return [*self.stock_out_keys, *own]

    @property
    def keyword_out_keys(self) -> list[NestedKey]:
        """The keys that a call with keyword arguments returns: TorchRL's, or the selected ones."""
        return self.selected_out_keys or self.stock_out_keys

    @dispatch(dest="keyword_out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes TorchRL's losses, ``vmf_factor`` and ``vmf_resultant_length``.

        A call with keyword arguments returns the tuple of :attr:`keyword_out_keys`.

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

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the critic loss. This method has the same name in all losses."""
        return getattr(self, self.critic_loss_name)(tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes TorchRL's actor loss, with the factors and lengths as additional metadata."""
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
        """Returns metadata on how much the critics agree, given their gradients and values."""
        used = resolved_critic(self.used, values, self.target_count)
        factor, length = factor_and_length(gradients, used)
        metadata = {"vmf_factor": factor, "vmf_resultant_length": length}
        if self._report is not None:
            self._report.update(metadata)
        return metadata

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics, for the actor loss, the TD target or the prediction."""
        if self._in_actor_loss:
            return self.actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.target_count < self.num_qvalue_nets:
            params = params[: self.target_count]
            if not self.has_shared_inputs:
                tensordict = tensordict[: self.target_count]
        return self.stock_critics(tensordict, params)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values that the actor maximizes, linear in the action. Keeps their gradients."""
        inputs = tensordict
        if self.has_shared_inputs:
            inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        at = None
        if self.actor_noise:  # the same for all critics
            action = inputs.get(self.tensor_keys.action).detach()
            at = self.perturbed(action[0]).expand_as(action)
        value_key = self.tensor_keys.state_action_value
        values, self.tapped_gradients = linearized_values(
            lambda inputs: self.paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=at,
        )
        self.tapped_values = values.detach().mean(-1)
        if followed_critic(self) == "min":
            values = values[: self.target_count]
        return TensorDict({value_key: values}, [len(values), *inputs.batch_size[1:]])

    def perturbed(self, action: Tensor) -> Tensor:
        """The action ``[*batch, action]`` where critics are evaluated if ``actor_noise`` is set."""
        raise NotImplementedError

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
        action_key: the entry of the action, a tensor or a TensorDict of tensors.
        value_key: the entry of the value.
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


def action_gradients(loss: LossModule, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Evaluates all critics of a loss at the action of its policy, in one pass.

    Args:
        loss: a TorchRL loss with an ``actor_network`` and an ensemble ``qvalue_network``.
        tensordict: a batch ``[*batch]`` with the observations that the networks read.

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
    # Measuring must not update the running statistics of normalization layers.
    with evaluating(critic):
        values, gradients = linearized_values(
            lambda inputs: ensemble(inputs, params),
            inputs.expand(params.batch_size[0], *inputs.batch_size),
            action_key=action_key,
            value_key=loss.tensor_keys.state_action_value,
        )
    return values.mean(-1), gradients
