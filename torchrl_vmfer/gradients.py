"""Per-critic action gradients, and the critic whose gradient moves the actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, cast, get_args

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import REDQLoss, TD3BCLoss, TD3Loss, TQCLoss
from torchrl.objectives.common import LossModule

from torchrl_vmfer._torchrl import paired_critics
from torchrl_vmfer.directional import Used, mean_gradient
from torchrl_vmfer.networks import evaluating

__all__ = [
    "UsedCritic",
    "action_gradients",
    "action_leaves",
    "checked_critic",
    "directed",
    "followed_critic",
    "linearized_values",
    "resolved_critic",
]

UsedCritic: TypeAlias = Literal["first", "min", "mean"]
"""The critic e whose gradient moves the actor: the first, the one with the lowest value, or the
mean of all."""


def followed_critic(loss: LossModule) -> UsedCritic:
    """Returns the critic that the actor of a loss follows."""
    if isinstance(loss, (TD3Loss, TD3BCLoss)):
        return getattr(loss, "objective", "first")
    return "mean" if isinstance(loss, (REDQLoss, TQCLoss)) else "min"


def checked_critic(used: str) -> UsedCritic:
    """Validates ``used`` and returns it."""
    if used not in get_args(UsedCritic):
        raise ValueError(f"used must be 'first', 'min' or 'mean', got {used!r}.")
    return cast(UsedCritic, used)


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
        action_key: a tensor or a TensorDict of tensors.
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


def action_gradients(loss: LossModule, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Evaluates all critics of a loss at the action of its policy, in one pass.

    Returns:
        the values ``[N, *batch]``, and the gradients ``[N, *batch, action]`` of l_i = -Q_i with
        respect to the action, or to the pre-tanh action if the loss has ``directions="pre_tanh"``.
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
    return values.mean(-1), directed(loss, gradients, inputs.get(action_key))
