"""Nested structures of plain tensors, numbers and strings, which can be loaded without pickle."""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor, nn

from torchrl_vmfer.files import replacing

# Types that PyTorch loads without executing code, besides tensors and containers.
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.Size),
)


def plain(value: Any, where: str, *, copy: bool = True) -> Any:
    """Converts a nested structure to plain values, or raises an error that names the entry.

    NumPy scalars and strings become Python ones. Instances of subclasses of containers and strings
    are converted to the base class. Views of a larger tensor are copied in any case, because
    PyTorch would save all of it.
    """
    if isinstance(value, Tensor):
        copy = copy or value.untyped_storage().nbytes() > value.numel() * value.element_size()
        if not copy and type(value) in (Tensor, nn.Parameter):
            return value
        value = value.detach().as_subclass(Tensor)
        return value.clone() if copy else value
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and type(value.item()) in _PLAIN:
        return value.item()
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind(
            (plain(key, where), plain(item, f"{where}[{key!r}]", copy=copy))
            for key, item in value.items()
        )
    for sequence, sources in {list: (list, deque), tuple: (tuple,), set: (set, frozenset)}.items():
        if isinstance(value, sources):
            return sequence(plain(item, f"{where}[{i}]", copy=copy) for i, item in enumerate(value))
    if isinstance(value, str):
        return str(value)
    raise TypeError(
        f"{where} holds an object of type {type(value).__name__}, which cannot be saved without "
        "pickle: store tensors, numbers or strings only."
    )


def tensordict_to_plain(data: TensorDictBase, where: str, *, copy: bool = True) -> dict[str, Any]:
    """Converts a TensorDict of tensors and plain values to plain dictionaries.

    With ``copy=False``, these hold the tensors themselves.
    """
    tensors, nested, values = {}, {}, {}
    for key, entry in data.items():
        name = f"{where}[{key!r}]"
        if is_non_tensor(entry):
            values[key] = plain(entry.tolist(), name)
        elif isinstance(entry, TensorDictBase):
            nested[key] = tensordict_to_plain(entry, name, copy=copy)
        else:
            tensors[key] = plain(entry, name) if copy else entry
    return {
        "batch_size": list(data.batch_size),
        "device": None if data.device is None else str(data.device),
        "tensors": tensors,
        "nested": nested,
        "values": values,
    }


def tensordict_from_plain(
    state: dict[str, Any], device: str | torch.device | None = None
) -> TensorDict:
    """Restores the output of :func:`tensordict_to_plain`, on another device if one is given."""
    size = torch.Size(state["batch_size"])
    entries = {
        **state["tensors"],
        **{key: tensordict_from_plain(entry, device) for key, entry in state["nested"].items()},
        **{key: _non_tensor(value, len(size)) for key, value in state["values"].items()},
    }
    return TensorDict(entries, size, device=state["device"] and (device or state["device"]))


def _non_tensor(value: Any, ndim: int) -> Any:
    if ndim == 0:
        return NonTensorData(value)
    return NonTensorStack(*(_non_tensor(item, ndim - 1) for item in value))


def check_saved(
    state: Any, expected: dict[str, Any], settings: Sequence[str] = (), numbers: Sequence[str] = ()
) -> None:
    """Raises an error if a state cannot be loaded into the sampler with the state ``expected``.

    The state must have been saved by the same class (the entry ``"sampler"``), have the same
    entries, and agree in the ``settings``. Its ``numbers`` must be finite and at least 0.
    """
    name = expected["sampler"]
    saved = state.get("sampler") if isinstance(state, dict) else None
    if saved != name:
        raise ValueError(
            f"The state was not saved by {name} but by {saved or 'another class'}: load it into a "
            "sampler of the class that saved it."
        )
    missing = expected.keys() - state.keys()
    if missing:
        raise ValueError(f"The state of {name} lacks {', '.join(sorted(missing))}.")
    for setting in settings:
        if state[setting] != expected[setting]:
            raise ValueError(
                f"The state was saved with {setting}={state[setting]!r}, but this sampler has "
                f"{setting}={expected[setting]!r}: construct it with the {setting} of the state."
            )
    for entry in numbers:
        if not (isinstance(state[entry], (int, float)) and 0 <= state[entry] < math.inf):
            raise ValueError(
                f"{entry} of the state is {state[entry]!r}, not a number of at least 0."
            )


def save_file(state: Any, file: Path) -> None:
    """Saves a state to a file. A failed save leaves an existing file intact."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, "wb") as stream:
        torch.save(state, stream)


def load_file(file: Path) -> Any:
    """Loads a state saved by :func:`save_file`.

    Damaged files are rejected, and no code from the file is executed.
    """
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: pass a folder written by dumps().")
    try:
        return load_checked(file)
    except Exception as error:
        raise RuntimeError(
            f"The state in {file} cannot be read ({error}): load an earlier one that was kept."
        ) from error


def load_checked(file: Path, **kwargs: Any) -> Any:
    """Loads plain data onto the CPU with ``torch.load`` after verifying their checksums.

    PyTorch writes checksums but does not verify them. It reads an entry that is marked as a
    directory as if it were empty.
    """
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
        folders = [entry.filename for entry in archive.infolist() if entry.external_attr & 0x10]
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")
    if folders:
        raise ValueError(f"{folders[0]} is marked as a directory")
    try:
        return torch.load(file, weights_only=True, map_location="cpu", **kwargs)
    except pickle.UnpicklingError as error:  # PyTorch's message recommends executing the pickle
        raise ValueError("it holds more than plain tensors and numbers") from error
