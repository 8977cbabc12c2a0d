"""Memory for the tensors of an update, which come and go at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["empty_tensors"]

_LINE = 16  # floats in a line of the cache


def empty_tensors(*shapes: Sequence[int]) -> list[Tensor]:
    """Makes uninitialized tensors in single precision on the CPU, in one block of memory.

    The memory of each tensor starts at a line of the cache. NumPy allocates it, not PyTorch:
    PyTorch requests aligned blocks, which glibc before 2.38 often does not reuse once they are
    freed. Depending on what else is on the heap, an update then takes new pages for its hidden
    units and gradients at every step, which makes the critic update up to 1.7 times as long.

    Args:
        *shapes: the shapes of the tensors.

    Examples:
        >>> weight, bias = empty_tensors([2, 3], [2])
        >>> weight.shape, bias.shape
        (torch.Size([2, 3]), torch.Size([2]))
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    places = np.cumsum([0, *(-(-size // _LINE) * _LINE for size in sizes)])
    block = np.empty(places[-1] + _LINE, np.float32)
    start = -block.ctypes.data // block.itemsize % _LINE
    memory = torch.from_numpy(block)
    return [
        memory[start + place : start + place + size].view(tuple(shape))
        for place, size, shape in zip(places[:-1].tolist(), sizes, shapes, strict=True)
    ]
