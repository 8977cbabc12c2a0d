"""Checkpoints that survive a crash at any moment.

A checkpoint consists of files of plain data with checksums, which are loaded without executing code
(``weights_only=True``). Only plain data are written, so that each file can be read back.
(TorchRL's ``Checkpoint`` writes folders of raw memory maps: it does not detect a flipped or missing
byte, and it writes storages at full capacity.)
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchrl_vmfer.plain_state import (
    load_checked,
    plain,
    save_file,
    tensordict_from_plain,
    tensordict_to_plain,
)
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.run.files import checkpoint_files, step_of

_KEPT, _SEGMENTS = "kept", "segments"  # folders
_SIZE = 50_000  # rows in a file of transitions, which is written again until it is full


class Stateful(Protocol):
    """Anything that can be part of a checkpoint."""

    def state_dict(self) -> Any:
        """Plain data: tensors, numbers, strings, and containers of these."""

    def load_state_dict(self, state: Any) -> Any:
        """Resumes from a saved state."""


@dataclass
class Part:
    """A part of a checkpoint that consists of two functions."""

    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], Any]


def load_parts(parts: Mapping[str, Any], states: Mapping[str, Any], fault: str, cure: str) -> None:
    """Loads the states of a checkpoint into the components of the same names.

    If some state does not fit, it raises an error that consists of ``fault``, reason and ``cure``.
    """
    try:
        for name, part in parts.items():
            part.load_state_dict(states[name])
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{fault} ({first_line(error)}): {cure}.") from error


def plain_data(value: Any, place: str) -> Any:
    """Converts a state to tensors, which are not copied, numbers, strings and containers."""
    try:
        return plain(value, place, copy=False)
    except TypeError as error:
        raise UserError(f"A checkpoint cannot be saved: {error}") from error


class Segments:
    """Files with the transitions of checkpoints, each with consecutive rows and written once.

    A replay buffer overwrites its oldest rows only. Consecutive checkpoints therefore share most of
    their rows, and the files that hold these.

    A file is named after the numbers of its rows, counted from the start of the run, and after
    their checksum: a resumed run may collect other rows with the same numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: list[str] = []  # the files of the last checkpoint, in the order of their rows

    def save(self, storage: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
        """Writes the rows that no file of the last checkpoint holds. Returns the names of all."""
        written, capacity = storage["written"], storage["capacity"]
        stored = tensordict_from_plain(rows[0]) if rows else None
        names = []
        for first, last in _ranges(written - storage["length"], written, capacity):
            known = (name for name in self.names if _is_within(first, last, name))
            name = next(known, None)
            if name is None or not (self._folder / name).exists():
                assert stored is not None
                slot = first % capacity
                part = tensordict_to_plain(stored[slot : slot + last - first], "The stored entry ")
                name = f"{first:012d}-{last:012d}-{_checksum(part):08x}.pt"
                save_file(part, self._folder / name)
            names.append(name)
        self.names = names
        return names

    def load(self, storage: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
        """Memory-maps the rows of a checkpoint, in the order of their slots, and verifies them."""
        oldest, capacity = storage["written"] - storage["length"], storage["capacity"]
        rows = {}
        for name in names:
            first, _ = _numbers(name)
            part = load_checked(self._folder / name, mmap=True)
            if first < oldest:  # these rows were overwritten
                whole = tensordict_from_plain(part)
                part = tensordict_to_plain(whole[oldest - first :], "", copy=False)
            rows[max(first, oldest) % capacity] = part
        return [rows[slot] for slot in sorted(rows)]

    def clean(self, names: set[str]) -> None:
        """Deletes all files but these, and the folder if it is empty."""
        for file in self._folder.glob("*"):
            if file.name not in names:
                file.unlink()
        if self._folder.exists() and not names:
            self._folder.rmdir()


def _ranges(first: int, last: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Splits numbers of rows into ranges, each for one file and in consecutive slots."""
    while first < last:
        slot = first % capacity
        end = min(first + _SIZE - slot % _SIZE, first + capacity - slot, last)
        yield first, end
        first = end


def _numbers(name: str) -> tuple[int, int]:
    """The number of the first row in a file, and the number after its last row."""
    first, last, _ = name.split("-")
    return int(first), int(last)


def _is_within(first: int, last: int, name: str) -> bool:
    start, end = _numbers(name)
    return start <= first and last <= end


def _checksum(part: dict[str, Any]) -> int:
    checksum = 0
    entries = tensordict_from_plain(part).items(True, True)
    for _, entry in sorted(entries, key=lambda item: str(item[0])):
        if isinstance(entry, Tensor):
            checksum = zlib.crc32(entry.contiguous().numpy().data, checksum)
    return checksum


def load_checkpoint(file: Path) -> dict[str, Any]:
    """Loads a checkpoint after verifying its checksums. Its transitions are memory-mapped."""
    state = load_checked(file)
    if not (isinstance(state, dict) and "step" in state):
        raise ValueError("it holds no step")
    if state["step"] != step_of(file):  # it would outlive all others
        raise UserError(f"{file} is a checkpoint of step {state['step']}: delete it.")
    if storage := _storage(state):
        folder = file.parent.parent if file.parent.name == _KEPT else file.parent
        segments = Segments(folder / _SEGMENTS)
        storage["rows"] = segments.load(storage, state["segments"])
    return state


def _storage(state: dict[str, Any]) -> dict[str, Any]:
    """The state of the storage of the replay buffer, which some states lack."""
    return state.get("parts", {}).get("replay", {}).get("storage", {})


class Checkpoints:
    """The newest checkpoints in a folder, and those that are kept permanently.

    A checkpoint is a file ``step_<step>.pt`` and the segments to which it refers: files with the
    transitions, which all checkpoints of the run share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments = Segments(folder / _SEGMENTS)

    def _files(self) -> list[Path]:
        return sorted(checkpoint_files(self._folder), reverse=True)

    @property
    def kept(self) -> set[int]:
        """The steps of the checkpoints that are kept permanently, read from their names."""
        return {step_of(file) for file in checkpoint_files(self._folder / _KEPT)}

    def reduce(self, to: int) -> Path | None:
        """Deletes the oldest until this many are left. Returns the newest of these."""
        files = self._files()
        for old in files[to:]:
            old.unlink()
        self._clean()
        if to == 0 and self._folder.exists() and not any(self._folder.iterdir()):
            self._folder.rmdir()
        return files[0] if files[:to] else None

    def save(self, step: int, state: dict[str, Any], *, is_kept: bool = False) -> bool:
        """Saves a state, then deletes the oldest. Returns whether saving succeeded."""
        rows = _storage(state).pop("rows", [])
        state = plain_data(state, f"the state of step {step}")
        folder = self._folder / _KEPT if is_kept else self._folder
        try:
            if storage := _storage(state):
                state["segments"] = self._segments.save(storage, rows)
            save_file(state, folder / f"step_{step:012d}.pt")
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            kept = self._files()
            print(
                f"Could not save the checkpoint of step {step} ({first_line(error)}): free disk "
                "space. " + (f"{kept[0].name} is intact." if kept else "There is no older one."),
                file=sys.stderr,
            )
            self._clean()
            return False
        if not is_kept:
            self.reduce(to=2)
        return True

    def _clean(self) -> None:
        """Deletes the segments to which no checkpoint refers."""
        used: set[str] = set()
        for file in [*self._files(), *checkpoint_files(self._folder / _KEPT)]:
            try:
                used.update(torch.load(file, weights_only=True, mmap=True).get("segments", []))
            except OSError:  # the file may be readable later
                return
            except Exception:  # it is damaged
                continue
        self._segments.clean(used)

    def load(self) -> dict[str, Any] | None:
        """The newest readable state, or ``None`` if there is no file.

        Unreadable files are reported. If no file is readable, it raises an error: restarting from
        step 0 would overwrite the output of the run.
        """
        files = self._files()
        for file in files:
            try:
                state = load_checkpoint(file)
            except UserError:
                raise
            except Exception as error:
                print(
                    f"The checkpoint {file} cannot be read ({first_line(error)}); "
                    "trying an older one.",
                    file=sys.stderr,
                )
                continue
            self._segments.names = state.get("segments", [])
            return state
        if files:
            raise UserError(
                f"No checkpoint in {self._folder} can be read: restore a backup, or delete the run "
                "directory to restart from step 0."
            )
        return None
