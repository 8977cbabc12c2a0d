"""Storage and writer for single transitions that are read in random batches."""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np
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
        self._functions = functions()
        self._stored = self._written = _Arrays([])

    def read(self, index: Tensor) -> TensorDictBase:
        """Reads rows of all columns."""
        columns, slots = self._arrays(), np.ascontiguousarray(index.numpy(), np.int64)
        count = len(slots)
        if self._functions is None:
            found = [column[slots] for column in columns]
        else:
            found = [np.empty((count, *column.shape[1:]), column.dtype) for column in columns]
            self._functions.read_rows(columns, slots, len(columns[0]), tuple(found))
        size, tensors = torch.Size([count]), [torch.from_numpy(values) for values in found]
        rows: dict[str, Any] = dict(zip(self._keys, tensors, strict=False))
        following = dict(zip(self._next_keys, tensors[len(self._keys) :], strict=True))
        rows["next"] = unchecked_tensordict(following, size)
        return unchecked_tensordict(rows, size)

    def write(self, index: Tensor, data: TensorDictBase) -> None:
        """Writes rows of all columns."""
        entries = entries_of(data)
        given = [entries[key] for key in self._keys]
        if self._next_keys:
            entries = entries_of(entries["next"])
            given += [entries[key] for key in self._next_keys]
        written, slots = self._written, index.numpy()
        if not written.are_of(given):
            written = _Arrays(given)
            if len(slots) == 1:  # a collector overwrites the same transition at every step
                self._written = written
        columns = self._arrays()
        is_same = written.is_contiguous and written.layout == self._stored.layout
        if self._functions is not None and is_same:
            self._functions.write_rows(columns, slots, len(columns[0]), written.arrays)
            return
        for column, row in zip(columns, written.arrays, strict=True):
            column[slots] = row  # converts other types

    def _arrays(self) -> tuple[np.ndarray, ...]:
        """The columns as arrays."""
        if not self._stored.are_of(self._columns):  # PyTorch may move a column to shared memory
            self._stored = _Arrays(self._columns)
        return self._stored.arrays


class _Arrays:
    """The arrays of some tensors."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._addresses = [tensor.data_ptr() for tensor in tensors]
        self.arrays = tuple(tensor.numpy() for tensor in tensors)
        self.layout = [(array.dtype, array.shape[1:]) for array in self.arrays]
        self.is_contiguous = all(array.flags.c_contiguous for array in self.arrays)

    def are_of(self, tensors: list[Tensor]) -> bool:
        """Whether they are those of these tensors."""
        return (
            len(tensors) == len(self._tensors)
            and all(map(is_, tensors, self._tensors))
            and list(map(Tensor.data_ptr, tensors)) == self._addresses
        )


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
