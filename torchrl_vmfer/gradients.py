"""Per-critic action gradients in one forward and one backward pass of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import TD3BCLoss, TD3Loss
from torchrl.objectives.common import LossModule

from torchrl_vmfer._torchrl import paired_critics

__all__ = ["action_gradients", "linearized_values"]


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
    exploration = ExplorationType.RANDOM
    if isinstance(loss, (TD3Loss, TD3BCLoss)):
        exploration = loss.deterministic_sampling_mode
    observed = dict.fromkeys([*actor.in_keys, *critic.in_keys])
    inputs = tensordict.select(*(key for key in observed if key != action_key))
    with set_exploration_type(exploration), loss.actor_network_params.to_module(actor):
        inputs = actor(inputs).select(*critic.in_keys)
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
