"""One priority per storage slot, for a storage that grows, wraps and is emptied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

__all__ = ["SlotPriorities", "flat_slots"]


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """Flatten any index that TorchRL hands to a sampler into slot numbers.

    Args:
        index: an ``int``, a tensor ``[n]``, a tensor ``[n, ndim]`` or a tuple of ``ndim``
            tensors. ``None`` stands for no slot.
        storage: required to flatten the indices of a storage with more than one dimension.

    Returns:
        an integer array; rows that a writer did not store keep a negative number.
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


class SlotPriorities:
    """A growing array with one ``float32`` priority per slot.

    The capacity of a storage may be unknown, huge or subject to change, so the array covers the
    slots that are in use and doubles its size when necessary.

    Examples:
        >>> priorities = SlotPriorities()
        >>> priorities.resize(3, fill=1.0)
        >>> priorities.array[1] = 2.0
        >>> priorities.array
        array([1., 2., 1.], dtype=float32)
    """

    def __init__(self) -> None:
        # Not a tensor: torch.multiprocessing would share its memory with other processes, whose
        # samplers have an order of ranks of their own.
        self._memory = np.empty(0, np.float32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> np.ndarray:
        """The priorities of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Make ``length`` slots live; those that were not hold ``fill``."""
        if length > len(self._memory):
            grown = np.empty(max(length, 2 * len(self._memory)), np.float32)
            grown[: self._length] = self.array
            self._memory = grown
        self._memory[self._length : length] = fill
        self._length = length

    def load(self, priorities: np.ndarray) -> None:
        """Replace all priorities by a copy of ``priorities``."""
        self._memory = np.array(priorities, np.float32)
        self._length = len(priorities)
