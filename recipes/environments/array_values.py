"""Plain data for nested values that hold NumPy arrays and numbers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from vmfer_recipes.run.checkpoints import plain_data

__all__ = ["decode", "encode"]


def encode(value: Any) -> Any:
    """Converts a value to plain data, as checkpoints hold them. Deques become lists."""
    # Tensors keep the data type of NumPy numbers, which affects rounding.
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))
    if isinstance(value, dict):
        return {plain_data(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return [encode(item) for item in value]
    if type(value) is tuple:
        return tuple(encode(item) for item in value)
    return plain_data(value)


def decode(saved: Any) -> Any:
    """Restores the output of :func:`encode`. Tensors become arrays and numbers."""
    if isinstance(saved, torch.Tensor):
        array = saved.numpy().copy(order="K")
        return array if array.ndim else array[()]
    if isinstance(saved, dict):
        return {key: decode(item) for key, item in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(map(decode, saved))
    return saved
