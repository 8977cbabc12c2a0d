"""Per-critic action gradients in one forward and one backward pass of the ensemble."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor

__all__ = ["linearized_values"]


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
        action_key: the entry of the action.
        value_key: the entry of the value.
        mean: whether the loss is going to average over the batch. Gradients pass through the
            critics with the weight that they would have in a plain backward pass, which makes
            the actor's gradient equal to that one to the last bit.
        at: the action at which to ask the critics, ``[N, *batch, action]``, where it is not
            the one in ``inputs``. The latter still receives the gradient found there.

    Returns:
        the values ``[N, *batch, 1]``, differentiable with respect to the inputs, and the
        gradients ``[N, *batch, action]`` of the losses l_i = -Q_i with respect to the action.
    """
    action_key = unravel_key(action_key)
    differentiable = [key for key in inputs.keys(True, True) if inputs.get(key).requires_grad]
    if action_key not in differentiable:
        differentiable.append(action_key)
    origins = [inputs.get(key) for key in differentiable]
    points = [origin.detach() for origin in origins]
    at_action = differentiable.index(action_key)
    if at is not None:
        points[at_action] = at

    def values_at(*points: Tensor) -> Tensor:
        perturbed = inputs.copy()
        for key, point in zip(differentiable, points, strict=True):
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
    return values, gradients[at_action].flatten(values.ndim - 1) / -weight


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
