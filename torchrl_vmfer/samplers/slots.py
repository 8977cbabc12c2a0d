"""Slot numbers from TorchRL's indices, and arrays with one number per slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

__all__ = ["SlotArray", "flat_slots", "stored_slots", "uniform"]


def uniform(count: int, generator: torch.Generator | None) -> np.ndarray:
    """Draws numbers in [0, 1) in double precision."""
    # torch.randint favors low numbers by up to n/2³², and single precision would round small
    # factors to multiples of 2⁻²⁴.
    return torch.rand(count, dtype=torch.float64, generator=generator, device="cpu").numpy()


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """Flattens any index that TorchRL passes to a sampler into slot numbers.

    Args:
        index: an ``int``, a tensor ``[n]``, a tensor ``[n, ndim]`` or a tuple of ``ndim``
            tensors. ``None`` means no slots.
        storage: required to flatten the indices of a storage with more than one dimension.

    Returns:
        an integer array. Rows that a writer did not store have negative numbers.
    """
    if type(index) is Tensor and index.dtype is torch.int64 and index.ndim == 1 and index.is_cpu:
        return index.numpy()
    if index is None:
        return np.empty(0, np.int64)
    if isinstance(index, tuple):
        index = torch.stack([torch.as_tensor(i, device="cpu").reshape(-1) for i in index], -1)
    slots = torch.as_tensor(index, device="cpu").numpy()
    if slots.dtype.kind not in "iu" and slots.size:
        raise TypeError(f"A slot index must be an integer, got {slots.dtype}.")
    slots = slots.astype(np.int64, copy=False)
    if storage is not None and storage.ndim > 1 and slots.ndim > 1:
        stored = slots[..., 0] >= 0
        outside = ((slots < 0) | (slots >= storage.shape)).any(-1) & stored
        if outside.any():
            bad = slots[outside][0].tolist()
            raise IndexError(f"Index {bad} is outside a storage of shape {list(storage.shape)}.")
        flat = slots[..., 0].copy()
        flat[stored] = np.ravel_multi_index(tuple(slots[stored].T), storage.shape)
        slots = flat
    return slots.reshape(-1)


def stored_slots(slots: np.ndarray) -> np.ndarray:
    """Removes the slots that a writer did not store."""
    return slots[slots >= 0] if len(slots) and np.minimum.reduce(slots) < 0 else slots


class SlotArray:
    """A growing array with one number per slot.

    The capacity of a storage may be unknown, huge or subject to change. The array therefore only
    covers the slots in use and doubles in size when necessary.

    Args:
        dtype: the type of the numbers; ``float32``, as for priorities, by default.

    Examples:
        >>> priorities = SlotArray()
        >>> priorities.resize(3, fill=1.0)
        >>> priorities.array[1] = 2.0
        >>> priorities.array
        array([1., 2., 1.], dtype=float32)
    """

    def __init__(self, dtype: type[np.generic] = np.float32) -> None:
        # Not a tensor: torch.multiprocessing would share its memory with other processes, whose
        # samplers keep separate rank orders.
        self._memory = np.empty(0, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> np.ndarray:
        """The numbers of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Sets the number of live slots. New slots are set to ``fill``."""
        if length > len(self._memory):
            grown = np.empty(max(length, 2 * len(self._memory)), self._memory.dtype)
            grown[: self._length] = self.array
            self._memory = grown
        self._memory[self._length : length] = fill
        self._length = length

    def load(self, values: np.ndarray) -> None:
        """Replaces all numbers with a copy of ``values``."""
        self._memory = np.array(values, self._memory.dtype)
        self._length = len(values)
