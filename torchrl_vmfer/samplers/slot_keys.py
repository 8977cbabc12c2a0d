"""One number per storage slot, kept in step with a storage that grows, wraps and empties."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

__all__ = ["SlotKeys", "flat_slots"]


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """The flat slot numbers behind any index that TorchRL hands to a sampler.

    Args:
        index: an ``int``, a tensor ``[n]``, a tensor ``[n, ndim]`` or a tuple of ``ndim``
            tensors. ``None`` stands for no slot.
        storage: needed to flatten the indices of a storage with more than one dimension.

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


class SlotKeys:
    """A growing array with one ``float32`` key per slot.

    The capacity of a storage may be unknown, huge or subject to change, so the array follows
    the slots that are in use, doubling its size when it must.

    Examples:
        >>> keys = SlotKeys()
        >>> keys.resize(3, fill=1.0)
        >>> keys.array[1] = 2.0
        >>> keys.array
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
        """The keys of the live slots, without a copy. The last of several assignments wins."""
        return self._memory[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Makes ``length`` slots live; those that were not hold ``fill``."""
        if length > len(self._memory):
            grown = np.empty(max(length, 2 * len(self._memory)), np.float32)
            grown[: self._length] = self.array
            self._memory = grown
        self._memory[self._length : length] = fill
        self._length = length

    def load(self, keys: np.ndarray) -> None:
        """Replaces all keys by a copy of ``keys``."""
        self._memory = np.array(keys, np.float32)
        self._length = len(keys)
