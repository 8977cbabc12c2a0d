"""Storage and writer for single transitions that are read in random batches."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ConsumingSampler, TensorDictRoundRobinWriter

from torchrl_vmfer._torchrl import (
    MappableStorage,
    append_rows,
    count_write,
    entries_of,
    stored_rows,
    unchecked_tensordict,
)
from torchrl_vmfer.compiled.extension import functions
from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer

__all__ = ["RowStorage", "RowWriter", "extend"]


class RowStorage(MappableStorage):
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
        self._written: list[Tensor] = [torch.empty(0)] * len(self._columns)

    def read(self, index: Tensor) -> TensorDictBase:
        """Reads rows of all columns."""
        count = len(index)
        if self._can_copy(index):
            found = [
                column.new_empty((count, *shape))
                for column, shape in zip(self._columns, self._shapes, strict=True)
            ]
            self._copy(self._functions.read_rows, index, found)
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
        if self._can_copy(index) and self._fit(given, len(index)):
            self._copy(self._functions.write_rows, index, given)
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

    def _fit(self, given: list[Tensor], count: int) -> bool:
        """Whether new rows have the same layout in memory as those of the columns."""
        if all(map(is_, given, self._written)) and len(given[0]) == count:
            return True  # a collector may overwrite the same transition at every step
        fit = all(
            row.dtype is column.dtype
            and row.is_cpu
            and row.is_contiguous()
            and row.shape == (count, *shape)
            for row, column, shape in zip(given, self._columns, self._shapes, strict=True)
        )
        if fit and count == 1:  # larger batches are not kept in memory
            self._written = given
        return fit

    def _copy(self, copy: Any, index: Tensor, rows: list[Tensor]) -> None:
        try:
            copy(self._arrays, index.numpy(), self._size, tuple(row.numpy() for row in rows))
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
