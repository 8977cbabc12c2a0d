"""Memory for the temporary tensors of an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["empty_tensors"]

_LINE = 16  # floats in a line of the cache


def empty_tensors(*shapes: Sequence[int]) -> list[Tensor]:
    """Makes uninitialized tensors in single precision on the CPU, in one block of memory.

    Each tensor starts at a cache line. NumPy allocates the memory, because PyTorch requests aligned
    blocks, which glibc before 2.38 often does not reuse once they are freed. Depending on what else
    is on the heap, the hidden units and gradients of an update then cause page faults at every
    step. ``benchmarks/README.md`` has the numbers.

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
    # Parts of the array, not of a tensor: a gradient must not be a view of another tensor.
    return [
        torch.from_numpy(block[start + place : start + place + size].reshape(tuple(shape)))
        for place, size, shape in zip(places[:-1].tolist(), sizes, shapes, strict=True)
    ]
