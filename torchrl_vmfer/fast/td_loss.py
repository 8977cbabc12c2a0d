"""The loss of an ensemble of critics for TD targets, by a compiled function where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchrl_vmfer.fast.kernels import are_plain, load_kernels

__all__ = ["DISTANCES", "TDLoss", "td_loss", "td_target"]

# TorchRL's distances, as functions of the error, and their derivatives.
DISTANCES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "l2": (torch.square, lambda error: 2 * error),
    "l1": (torch.abs, torch.sign),
    "smooth_l1": (
        lambda error: functional.smooth_l1_loss(error, torch.zeros_like(error), reduction="none"),
        lambda error: error.clamp(-1, 1),
    ),
}
_KINDS = list(DISTANCES)  # in the order of td_loss.c


class TDLoss(NamedTuple):
    """The loss of a batch.

    Attributes:
        loss: the sum over critics and transitions.
        slope: its gradient with respect to the values, ``[N, B]``.
        error: the values minus their targets, ``[N, B]``.
        target: the targets, ``[B]``.
        next_value: the value of the next state, ``[B]``.
    """

    loss: Tensor
    slope: Tensor
    error: Tensor
    target: Tensor
    next_value: Tensor


def td_target(next_value: Tensor, reward: Tensor, terminated: Tensor, gamma: Tensor) -> Tensor:
    """The TD target ``[*, B]`` for values ``[*, B]`` of the next state."""
    return reward + gamma * next_value.masked_fill(terminated, 0)


def td_loss(
    values: Tensor,
    next_values: Tensor,
    cost: Tensor | None,
    reward: Tensor,
    terminated: Tensor,
    gamma: Tensor,
    weights: Tensor,
    distance: str,
) -> TDLoss:
    """Computes the loss of an ensemble of critics.

    Args:
        values: the values of the critics, ``[N, B]``.
        next_values: those of the target critics in the next state, ``[M, B]``, of which the
            minimum is used.
        cost: subtracted from the minimum, ``[B]``.
        reward: the reward, ``[B]``.
        terminated: whether the next state is terminal, ``[B]``.
        gamma: the discount.
        weights: the weights of the transitions, ``[B]`` or ``[]``.
        distance: the distance between a value and its target, one of :data:`DISTANCES`.
    """
    kernels = load_kernels()
    if kernels is None or not _is_supported(values, next_values, cost, reward, terminated, weights):
        next_value = next_values.amin(0)
        next_value = next_value if cost is None else next_value - cost
        target = td_target(next_value, reward, terminated, gamma)
        error = values - target
        size, slope = (function(error) for function in DISTANCES[distance])
        return TDLoss((size * weights).sum(), slope * weights, error, target, next_value)
    values, next_values, weights, reward, terminated = (
        tensor.contiguous() for tensor in (values, next_values, weights, reward, terminated)
    )
    cost = None if cost is None else cost.contiguous()
    next_value, target = torch.empty_like(reward), torch.empty_like(reward)
    error, slope, loss = torch.empty_like(values), torch.empty_like(values), values.new_empty(())
    kernels.td_loss(
        *values.shape,
        values.data_ptr(),
        len(next_values),
        next_values.data_ptr(),
        None if cost is None else cost.data_ptr(),
        reward.data_ptr(),
        terminated.data_ptr(),
        float(gamma),
        _KINDS.index(distance),
        weights.data_ptr(),
        weights.ndim,
        *(tensor.data_ptr() for tensor in (next_value, target, error, slope, loss)),
    )
    return TDLoss(loss, slope, error, target, next_value)


def _is_supported(
    values: Tensor,
    next_values: Tensor,
    cost: Tensor | None,
    reward: Tensor,
    terminated: Tensor,
    weights: Tensor,
) -> bool:
    """Whether the compiled function supports the inputs, which it does not broadcast."""
    of_rows = [reward]
    of_rows += [] if cost is None else [cost]
    of_rows += [weights] if weights.ndim else []
    return (
        are_plain(values, next_values, weights, *of_rows)
        and values.ndim == 2
        and len(next_values) > 0
        and next_values.shape[1:] == values.shape[1:]
        and terminated.dtype is torch.bool
        and terminated.is_cpu
        and all(tensor.shape == values.shape[1:] for tensor in (terminated, *of_rows))
    )
