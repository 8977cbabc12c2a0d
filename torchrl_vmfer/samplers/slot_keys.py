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
    if index is None:
        return np.empty(0, np.int64)
    if isinstance(index, tuple):
        index = torch.stack([torch.as_tensor(i, device="cpu").reshape(-1) for i in index], -1)
    slots = torch.as_tensor(index, device="cpu").numpy()
    if slots.dtype.kind not in "iu" and slots.size:
        raise TypeError(f"A slot index must be an integer, got {slots.dtype}.")
    slots = slots.astype(np.int64, copy=False)
    if storage is not None and storage.ndim > 1 and slots.ndim > 1:
        shape = storage.shape[1:]
        strides = np.array([shape[dim:].numel() for dim in range(storage.ndim)])
        limits = (np.iinfo(np.int64).max // strides[0], *shape)
        stored = slots[..., 0] >= 0
        outside = ((slots < 0) | (slots >= limits)).any(-1) & stored
        if outside.any():
            bad = slots[outside][0].tolist()
            raise IndexError(f"Index {bad} is outside a storage of shape {list(storage.shape)}.")
        slots = np.where(stored, slots @ strides, slots[..., 0])
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
        self._tensor = torch.empty(0, dtype=torch.float32, device="cpu")
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tensor(self) -> Tensor:
        """The keys of the live slots, without a copy."""
        return self._tensor[: self._length]

    @property
    def array(self) -> np.ndarray:
        """The same memory as a NumPy array, where the last of several assignments wins."""
        return self._tensor.numpy()[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Makes ``length`` slots live; those that were not hold ``fill``."""
        if length > self._tensor.numel():
            size = max(length, 2 * self._tensor.numel())
            grown = torch.empty(size, dtype=torch.float32, device="cpu")
            grown[: self._length] = self.tensor
            self._tensor = grown
        if length > self._length:
            self._tensor[self._length : length] = fill
        self._length = length

    def load(self, keys: Tensor) -> None:
        """Replaces all keys by a copy of ``keys``."""
        self._tensor = keys.detach().to("cpu", torch.float32, copy=True)
        self._length = keys.numel()
