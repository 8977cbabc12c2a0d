"""Nested structures of plain tensors, numbers and strings, which are read without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

__all__ = ["plain", "tensordict_from_plain", "tensordict_to_plain"]

_PLAIN = (str, bool, int, float, type(None), torch.dtype, torch.device, torch.Size)


def plain(value: Any, where: str) -> Any:
    """Copy a nested structure of plain values, or raise an error that names the entry.

    Args:
        value: tensors, numbers, strings and ``None`` in dictionaries, lists and tuples. NumPy's
            scalars become those of Python.
        where: the name of the entry in error messages.
    """
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor).clone()
    if isinstance(value, np.generic):
        return plain(value.item(), where)
    if isinstance(value, Mapping):
        return {plain(key, where): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str(value)
    raise TypeError(
        f"{where} holds a {type(value).__name__}, which cannot be saved without pickle: store "
        "tensors, numbers or strings only."
    )


def tensordict_to_plain(data: TensorDictBase, where: str) -> dict[str, Any]:
    """Copy a TensorDict into plain dictionaries.

    Args:
        data: the TensorDict, which may hold non-tensor entries of plain values.
        where: the name of the TensorDict in error messages.
    """
    tensors, nested, values = {}, {}, {}
    for key, entry in data.items():
        name = f"{where}[{key!r}]"
        if is_non_tensor(entry):
            values[key] = plain(entry.tolist(), name)
        elif isinstance(entry, TensorDictBase):
            nested[key] = tensordict_to_plain(entry, name)
        else:
            tensors[key] = plain(entry, name)
    return {
        "batch_size": list(data.batch_size),
        "device": None if data.device is None else str(data.device),
        "tensors": tensors,
        "nested": nested,
        "values": values,
    }


def tensordict_from_plain(state: dict[str, Any]) -> TensorDict:
    """Restore what :func:`tensordict_to_plain` returned."""
    size = torch.Size(state["batch_size"])
    entries = {
        **state["tensors"],
        **{key: tensordict_from_plain(entry) for key, entry in state["nested"].items()},
        **{key: _non_tensor(value, len(size)) for key, value in state["values"].items()},
    }
    return TensorDict(entries, size, device=state["device"])


def _non_tensor(value: Any, ndim: int) -> Any:
    if ndim == 0:
        return NonTensorData(value)
    return NonTensorStack(*(_non_tensor(item, ndim - 1) for item in value))
