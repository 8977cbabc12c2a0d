"""Checkpoints that survive a crash at any moment.

A checkpoint is one file of plain data with checksums, which is read without executing code
(``weights_only=True``). Nothing else is ever written, so that each file can be read back.
(TorchRL's ``Checkpoint`` writes folders of raw memory maps: a flipped or missing byte goes
unnoticed, and storages are written at full capacity.)
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.files import replacing

__all__ = ["Checkpoints", "UnsavableError", "check_readable", "plain_data"]

# What PyTorch reads without executing code, besides containers of these.
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.Tensor, nn.Parameter, torch.Size, torch.dtype, torch.device),
)


class UnsavableError(UserError):
    """A state holds an object that a checkpoint cannot hold."""


def plain_data(value: Any, place: str = "the state") -> Any:
    """Converts a state to tensors, numbers, strings and containers of these.

    NumPy's numbers and strings become Python's, and subclasses of containers become what they
    are derived from. What needs no conversion is returned as it is, without a copy.

    Args:
        value: the state.
        place: the name of the state in an error message.

    Raises:
        UnsavableError: naming the entry that cannot be converted.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufcUS":
        return value.item()
    if isinstance(value, dict):
        pairs = [
            (plain_data(key, f"a key of {place}"), plain_data(item, f"{place}.{key}"))
            for key, item in value.items()
        ]
        is_plain = type(value) in (dict, OrderedDict) and all(
            key is old and item is value[old] for (key, item), old in zip(pairs, value, strict=True)
        )
        return value if is_plain else dict(pairs)
    for kind, sources in {list: (list, deque), tuple: (tuple,), set: (set, frozenset)}.items():
        if isinstance(value, sources):
            items = [plain_data(item, f"{place}[{n}]") for n, item in enumerate(value)]
            is_plain = type(value) is kind and all(map(lambda x, y: x is y, items, value))
            return value if is_plain else kind(items)
    raise UnsavableError(
        f"A checkpoint cannot hold {place}, which is a {type(value).__module__}."
        f"{type(value).__qualname__}: return tensors, numbers, strings, or dictionaries and lists "
        "of these from `state_dict`."
    )


def check_readable(state: dict[str, Any]) -> None:
    """Saves a state to memory and loads it as :meth:`Checkpoints.load` does.

    Raises:
        UserError: if that fails.
    """
    file = io.BytesIO()
    state = plain_data(state, "the state")
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise UnsavableError(
            f"A checkpoint of this run could not be read back ({first_line(error)}): return only "
            "tensors, numbers and strings from each `state_dict`."
        ) from error


class Checkpoints:
    """The newest checkpoints of a run.

    Args:
        folder: where they are.
        keep: how many to keep; ``None`` keeps all.
    """

    def __init__(self, folder: Path, keep: int | None = 2) -> None:
        self._folder = folder
        self._keep = keep

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("step_*.pt"), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> bool:
        """Saves a state, and then deletes the oldest. Returns whether it could be saved.

        Raises:
            UnsavableError: if the file could not be read back; nothing is written or deleted.
        """
        state = plain_data(state, f"the state of step {step}")
        file = self._folder / f"step_{step:012d}.pt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(file, "wb") as stream:
                torch.save(state, stream)
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            kept = self._files()
            print(
                f"Could not save the checkpoint of step {step} ({first_line(error)}): make room on "
                "the disk. " + (f"{kept[0].name} is intact." if kept else "There is no older one."),
                file=sys.stderr,
            )
            return False
        if self._keep is not None:
            for old in self._files()[self._keep :]:
                old.unlink()
        return True

    def load(self) -> dict[str, Any] | None:
        """The newest readable state, or ``None`` if there is none.

        Files that cannot be read are reported. If there are no others, it is an error: starting
        again from step 0 would overwrite what the run has written.
        """
        for leftover in self._folder.glob("*.unfinished"):  # of a process that was killed
            leftover.unlink()
        files = self._files()
        for file in files:
            try:
                # PyTorch writes checksums but does not verify them.
                with zipfile.ZipFile(file) as archive:
                    damaged = archive.testzip()
                if damaged is not None:
                    raise ValueError(f"the checksum of {damaged} is wrong")
                state = torch.load(file, weights_only=True, map_location="cpu")
                if not (isinstance(state, dict) and "step" in state):
                    raise ValueError("it holds no step")
                return state
            except Exception as error:
                print(
                    f"The checkpoint {file} cannot be read ({first_line(error)}); "
                    "trying an older one.",
                    file=sys.stderr,
                )
        if files:
            raise UserError(
                f"None of the {len(files)} checkpoints in {self._folder} can be read: delete the "
                "run directory to start again from step 0, or restore a copy of them."
            )
        return None
