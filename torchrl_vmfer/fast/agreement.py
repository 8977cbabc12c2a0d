"""The factor and the resultant length of a batch, by a compiled function."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_vmfer import directional
from torchrl_vmfer.directional import Used, mean_gradient
from torchrl_vmfer.fast.kernels import load_kernels

__all__ = ["factor_and_length"]


def factor_and_length(gradients: Tensor, used: Used) -> tuple[Tensor, Tensor]:
    """Computes :func:`torchrl_vmfer.directional.factor_and_length`, with the same arguments.

    A batch is so small that most of the time of PyTorch's operations is overhead.
    """
    kernels = load_kernels()
    if kernels is None or not (_is_plain(gradients) and gradients.ndim == 3):
        return directional.factor_and_length(gradients, used)
    critic = moving = None
    if isinstance(used, Tensor) and not used.is_floating_point():
        critic = used.contiguous()
    elif isinstance(used, Tensor) or used == "mean":
        moving = (used if isinstance(used, Tensor) else mean_gradient(gradients)).contiguous()
    elif used != "first":
        return directional.factor_and_length(gradients, used)
    gradients = gradients.contiguous()
    critics, rows, width = gradients.shape
    found = torch.empty(2, rows)
    factor, length = found
    kernels.agreement(
        *(critics, rows, width, gradients.data_ptr()),
        None if critic is None else critic.data_ptr(),
        None if moving is None else moving.data_ptr(),
        *(factor.data_ptr(), length.data_ptr()),
    )
    return factor, length


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu and not tensor.requires_grad
