"""The critic that the actor follows, and the agreement of all critics, by compiled functions."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_vmfer import directional
from torchrl_vmfer.directional import Used, mean_gradient
from torchrl_vmfer.fast.kernels import are_plain, load_kernels

__all__ = ["factor_and_length", "follow_lowest"]


def factor_and_length(gradients: Tensor, used: Used) -> tuple[Tensor, Tensor]:
    """Computes :func:`torchrl_vmfer.directional.factor_and_length`, with the same arguments.

    A batch is so small that most of the time of PyTorch's operations is overhead.
    """
    kernels = load_kernels()
    if kernels is None or not (are_plain(gradients) and gradients.ndim == 3 and len(gradients)):
        return directional.factor_and_length(gradients, used)
    critics, rows, width = gradients.shape
    critic = moving = None
    if isinstance(used, Tensor) and used.dtype is torch.int64:
        critic = used.contiguous()
        is_supported = critic.is_cpu and critic.shape == (rows,)
    elif isinstance(used, Tensor) or used == "mean":
        moving = (used if isinstance(used, Tensor) else mean_gradient(gradients)).contiguous()
        is_supported = are_plain(moving) and moving.shape == (rows, width)
    else:
        is_supported = used == "first"
    if not is_supported:
        return directional.factor_and_length(gradients, used)
    gradients = gradients.contiguous()
    factor, length = gradients.new_empty(rows), gradients.new_empty(rows)
    is_computed = kernels.agreement(
        *(critics, rows, width, gradients.data_ptr()),
        None if critic is None else critic.data_ptr(),
        None if moving is None else moving.data_ptr(),
        *(factor.data_ptr(), length.data_ptr()),
    )
    if not is_computed:  # a critic does not exist, which is an error there
        return directional.factor_and_length(gradients, used)
    return factor, length


def follow_lowest(values: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the critic with the lowest value for each transition.

    Args:
        values: the values of the critics, ``[N, B]``.
        gradients: their gradients with respect to the action, ``[N, B, A]``.

    Returns:
        its value ``[B]``, its gradient ``[B, A]``, and its number ``[B]``.
    """
    kernels = load_kernels()
    if kernels is None or not are_plain(values, gradients):
        value, used = values.min(0)
        chosen = used[None, :, None].expand(1, *gradients.shape[1:])
        return value, gradients.gather(0, chosen).squeeze(0), used
    values, gradients = values.contiguous(), gradients.contiguous()
    value, gradient = torch.empty_like(values[0]), torch.empty_like(gradients[0])
    used = value.new_empty(len(value), dtype=torch.int64)
    kernels.follow_lowest(
        *gradients.shape,
        *(tensor.data_ptr() for tensor in (values, gradients, used, value, gradient)),
    )
    return value, gradient, used
