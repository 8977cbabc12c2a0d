"""The transitions of checkpoints, in files that are written once.

A replay buffer overwrites its oldest rows only. Consecutive checkpoints therefore share most of
their rows, and the files that hold these.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from torchrl_vmfer.plain_state import (
    load_checked,
    save_file,
    tensordict_from_plain,
    tensordict_to_plain,
)

_SIZE = 50_000  # rows in a file, which is written again until it is full


class Segments:
    """The files of a folder, each with consecutive rows.

    A file is named after the numbers of its rows, counted from the start of the run, and after
    their checksum: a resumed run may collect other rows with the same numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: list[str] = []  # the files of the last checkpoint, in the order of their rows

    def save(self, storage: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
        """Writes the rows that no file of the last checkpoint holds. Returns the names of all.

        Args:
            storage: the number of rows, the capacity and the number of rows written so far.
            rows: the rows in the state of a replay buffer, which may be views of its storage.
        """
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
