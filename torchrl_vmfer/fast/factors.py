"""Draws and updates of sampling factors by compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.fast.kernels import load_kernels

__all__ = ["accepted_slots", "store_factors"]


def accepted_slots(
    random: np.ndarray, factors: np.ndarray, bound: float, count: int
) -> np.ndarray | None:
    """Proposes slots uniformly and accepts each with probability factor / bound.

    Args:
        random: numbers in [0, 1) in double precision ``[2, proposals]``: where each proposal is,
            and whether it is accepted.
        factors: the factors of all slots in single precision.
        bound: an upper bound of the factors.
        count: the largest number of slots to return.

    Returns:
        the accepted slots; ``None`` if there are no compiled functions.
    """
    kernels = load_kernels()
    if kernels is None:
        return None
    proposals = random.shape[1]
    slots = np.empty(proposals, np.int64)
    found = kernels.accept_slots(
        *(proposals, random.ctypes.data, len(factors), factors.ctypes.data),
        *(bound, count, slots.ctypes.data),
    )
    return slots[:found]


def store_factors(
    index: Any,
    values: Any,
    interval: tuple[float, float],
    factors: np.ndarray,
    last_update: np.ndarray,
    update: int,
) -> bool:
    """Stores new factors of some slots, with the number of their update, if all lie in an interval.

    Args:
        index: the slots.
        values: the new factor of each.
        interval: the interval in which no factor needs a further check.
        factors: the factors of all slots in single precision.
        last_update: for each slot, the number of its last update, as ``int32``.
        update: the number of this update.

    Returns:
        whether the factors were stored. Otherwise nothing has changed: there are no compiled
        functions, the arguments are not vectors in the usual precision, a factor is outside the
        interval, or a slot does not exist.
    """
    kernels = load_kernels()
    return (
        kernels is not None
        and type(index) is Tensor
        and isinstance(values, Tensor)
        and index.dtype is torch.int64
        and values.dtype is torch.float32
        and index.ndim == 1
        and index.shape == values.shape
        and len(index) > 0
        and index.is_cpu
        and values.is_cpu
        and index.is_contiguous()
        and values.is_contiguous()
        and bool(
            kernels.store_factors(
                *(len(index), index.data_ptr(), values.data_ptr(), *interval),
                *(len(factors), factors.ctypes.data, last_update.ctypes.data, update),
            )
        )
    )
