"""Storage and writer for single transitions that are read in random batches."""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ConsumingSampler, LazyTensorStorage, TensorDictRoundRobinWriter

from torchrl_vmfer._torchrl import (
    append_rows,
    count_write,
    entries_of,
    stored_rows,
    unchecked_tensordict,
)
from torchrl_vmfer.compiled.extension import functions
from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer

__all__ = ["RowStorage", "RowWriter", "extend"]


class RowStorage(LazyTensorStorage):
    """TorchRL's :class:`~torchrl.data.LazyTensorStorage`, read and written column by column.

    For the data that the recipes store, it takes a third of the time. The rows must be
    one-dimensional and have identical entries, at the top level or under ``"next"``. The storage
    does not record the last written position, which slice samplers and TorchRL's storage
    checkpoints need.
    """

    _columns: _Columns | None = None

    def _current_columns(self) -> _Columns:
        rows: Any = stored_rows(self)
        if self._columns is None or self._columns.rows is not rows:
            self._columns = _Columns(rows)
        return self._columns

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_columns", None)  # the columns of this process
        return state

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Writes rows."""
        if not (self.initialized and set_cursor and isinstance(cursor, Tensor)):
            super().set(cursor, data, set_cursor=set_cursor)
            return
        count_write(self, len(cursor))
        self._current_columns().write(cursor, data)

    def get(self, index: Any) -> TensorDictBase:
        """Reads rows."""
        if not isinstance(index, Tensor) or index.ndim != 1:
            return super().get(index)
        return self._current_columns().read(index)


class _Columns:
    """The columns of a storage: its entries, in which each row has its slot."""

    def __init__(self, rows: TensorDictBase) -> None:
        self.rows = rows
        columns: list[tuple[Any, Tensor]] = list(rows.items(True, True))
        for key, _ in columns:
            if not isinstance(key, str) and (key[0] != "next" or len(key) > 2):
                raise KeyError(
                    f"RowStorage supports entries at the top level and under 'next', not {key}."
                )
        columns.sort(key=lambda column: not isinstance(column[0], str))
        self._columns = [column for _, column in columns]
        self._keys = [key for key, _ in columns if isinstance(key, str)]
        self._next_keys = [key[1] for key, _ in columns if not isinstance(key, str)]
        self._size = len(self._columns[0])
        self._shapes = [column.shape[1:] for column in self._columns]
        self._functions = functions()
        self._addresses: list[int] = []
        self._arrays: tuple[Any, ...] = ()
        # A collector overwrites the same transition at every step.
        self._written: list[Tensor] = []
        self._written_addresses: list[int] = []
        self._written_arrays: tuple[Any, ...] = ()

    def read(self, index: Tensor) -> TensorDictBase:
        """Reads rows of all columns."""
        count = len(index)
        if self._can_copy(index):
            found = [
                column.new_empty((count, *shape))
                for column, shape in zip(self._columns, self._shapes, strict=True)
            ]
            arrays = tuple(column.numpy() for column in found)
            self._copy(self._functions.read_rows, index, arrays)
        else:
            found = [column.index_select(0, index) for column in self._columns]
        size = torch.Size([count])  # all columns have this size
        rows: dict[str, Any] = dict(zip(self._keys, found, strict=False))
        following = dict(zip(self._next_keys, found[len(self._keys) :], strict=True))
        rows["next"] = unchecked_tensordict(following, size)
        return unchecked_tensordict(rows, size)

    def write(self, index: Tensor, data: TensorDictBase) -> None:
        """Writes rows of all columns."""
        entries = entries_of(data)
        given = [entries[key] for key in self._keys]
        if self._next_keys:
            entries = entries_of(entries["next"])
            given += [entries[key] for key in self._next_keys]
        if self._can_copy(index) and (arrays := self._arrays_of(given, len(index))):
            self._copy(self._functions.write_rows, index, arrays)
            return
        slots = index.numpy()
        for column, row in zip(self._columns, given, strict=True):
            column.numpy()[slots] = row.numpy()  # much faster than PyTorch for few rows

    def _can_copy(self, index: Tensor) -> bool:
        """Whether compiled functions can copy these rows."""
        addresses = [column.data_ptr() for column in self._columns]
        if addresses != self._addresses:  # PyTorch may move a column to shared memory
            self._addresses = addresses
            self._are_plain = all(
                column.is_cpu and column.is_contiguous() for column in self._columns
            )
            if self._are_plain:
                self._arrays = tuple(column.numpy() for column in self._columns)
        return (
            self._functions is not None
            and self._are_plain
            and index.dtype is torch.int64
            and index.is_cpu
            and index.is_contiguous()
        )

    def _arrays_of(self, given: list[Tensor], count: int) -> tuple[np.ndarray, ...]:
        """New rows as arrays, or none if their layout in memory is not that of the columns."""
        addresses = list(map(Tensor.data_ptr, given))
        is_known = len(self._written) == len(given) and all(map(is_, given, self._written))
        if is_known and addresses == self._written_addresses:
            return self._written_arrays
        fits = all(
            row.dtype is column.dtype
            and row.is_cpu
            and row.is_contiguous()
            and row.shape == (count, *shape)
            for row, column, shape in zip(given, self._columns, self._shapes, strict=True)
        )
        arrays = tuple(row.numpy() for row in given) if fits else ()
        if fits and count == 1:  # larger batches are not kept in memory
            self._written, self._written_addresses = given, addresses
            self._written_arrays = arrays
        return arrays

    def _copy(self, copy: Any, index: Tensor, rows: tuple[np.ndarray, ...]) -> None:
        try:
            copy(self._arrays, index.numpy(), self._size, rows)
        except IndexError as error:
            raise IndexError(
                f"A row of {index.tolist()} is outside a storage of {self._size} rows."
            ) from error


class RowWriter(TensorDictRoundRobinWriter):
    """TorchRL's round-robin writer, without the ``"index"`` entry in the stored rows."""

    def extend(self, data: TensorDictBase) -> Tensor:
        """Writes rows and returns their slots."""
        return append_rows(self, data)


def extend(buffer: ActorCriticReplayBuffer, data: TensorDictBase) -> None:
    """Writes rows to a replay buffer, as its ``extend`` does, but does not change ``data``.

    If the buffer has this module's writer and its storage has rows, TorchRL's method is skipped: it
    would also add the slots to ``data`` and look for priorities there.
    """
    writer: Any = buffer.writer
    if not (
        type(writer) is RowWriter
        and type(buffer).extend is ActorCriticReplayBuffer.extend
        and buffer.is_direct
        and buffer.storage.initialized
        and not isinstance(buffer.sampler, ConsumingSampler)
        and buffer.priority_key not in entries_of(data)
    ):
        buffer.extend(data.copy())
        return
    with buffer.thread_lock:
        buffer.sampler.extend(writer.extend(data))
