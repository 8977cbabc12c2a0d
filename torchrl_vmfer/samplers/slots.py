"""Slots of a storage: conversion of TorchRL's indices, and one number per slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """Flattens any index that TorchRL passes to a sampler into slot numbers.

    It may be an ``int``, a tensor ``[n]`` or ``[n, ndim]``, a tuple of ``ndim`` tensors, or
    ``None`` for no slots. Rows that a writer did not store have negative numbers.
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


class SlotArray:
    """An array with one number per slot, which doubles in size when necessary.

    The capacity of a storage may be unknown, huge or subject to change. The numbers are not a
    tensor, whose memory torch.multiprocessing would share with the samplers of other processes.
    """

    def __init__(self, dtype: type[np.generic] = np.float32) -> None:
        self._memory = np.empty(0, dtype)
        self.length = 0

    @property
    def array(self) -> np.ndarray:
        """The numbers of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self.length]

    def resize(self, length: int, fill: float) -> None:
        """Sets the number of live slots. New slots are set to ``fill``."""
        if length > len(self._memory):
            spare = np.empty(max(length, 2 * len(self._memory)) - self.length, self._memory.dtype)
            self._memory = np.concatenate([self.array, spare])
        self._memory[self.length : length] = fill
        self.length = length

    def load(self, values: np.ndarray) -> None:
        """Replaces all numbers with a copy of ``values``."""
        self._memory = np.array(values, self._memory.dtype)
        self.length = len(values)
