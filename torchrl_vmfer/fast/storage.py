"""Storage and writer for single transitions that are read in random batches."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictRoundRobinWriter

from torchrl_vmfer._torchrl import (
    claim_slots,
    count_write,
    stored_rows,
    unchecked_tensordict,
    write_rows,
)
from torchrl_vmfer.fast.kernels import load_kernels, pointers

__all__ = ["RowStorage", "RowWriter"]


class RowStorage(LazyTensorStorage):
    """TorchRL's :class:`~torchrl.data.LazyTensorStorage`, read and written column by column.

    For the data that the recipes store, it takes a third of the time. The rows must be
    one-dimensional and have identical entries, at the top level or under ``"next"``. The storage
    does not record the last written position, which slice samplers and TorchRL's storage
    checkpoints need.
    """

    _columns_of: Any = None

    def _columns(self) -> list[tuple[Any, Tensor]]:
        rows: Any = stored_rows(self)
        if self._columns_of is not rows:
            columns = list(rows.items(True, True))
            for key, _ in columns:
                if not isinstance(key, str) and (key[0] != "next" or len(key) > 2):
                    raise KeyError(
                        f"RowStorage supports entries at the top level and under 'next', not {key}."
                    )
            self._columns_of, self._column_list = rows, columns
        return self._column_list

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Writes rows."""
        if not (self.initialized and set_cursor and isinstance(cursor, Tensor)):
            super().set(cursor, data, set_cursor=set_cursor)
            return
        count_write(self, len(cursor))
        slots = cursor.numpy()
        following = data.get("next")
        for key, column in self._columns():
            row = data.get(key) if isinstance(key, str) else following.get(key[1])
            column.numpy()[slots] = row.numpy()  # much faster than PyTorch for few rows

    def get(self, index: Any) -> TensorDictBase:
        """Reads rows."""
        if not isinstance(index, Tensor) or index.ndim != 1:
            return super().get(index)
        columns = self._columns()
        found = _read([column for _, column in columns], index)
        rows: dict[str, Any] = {}
        following: dict[str, Tensor] = {}
        for (key, _), values in zip(columns, found, strict=True):
            if isinstance(key, str):
                rows[key] = values
            else:
                following[key[1]] = values
        size = torch.Size([len(index)])  # all columns have this size
        rows["next"] = unchecked_tensordict(following, size)
        return unchecked_tensordict(rows, size)


def _read(columns: list[Tensor], index: Tensor) -> list[Tensor]:
    """Reads rows of all columns, in one call of a compiled function where it is available."""
    kernels = load_kernels()
    if (
        kernels is None
        or not (index.dtype is torch.int64 and index.is_cpu and index.is_contiguous())
        or not all(column.is_cpu and column.is_contiguous() for column in columns)
    ):
        return [column.index_select(0, index) for column in columns]
    count, size = len(index), len(columns[0])
    found = [column.new_empty(count, *column.shape[1:]) for column in columns]
    widths = [column.stride(0) * column.element_size() for column in columns]
    exist = kernels.copy_rows(
        *(len(columns), pointers(columns), (ctypes.c_int64 * len(widths))(*widths), size),
        *(count, index.data_ptr(), pointers(found)),
    )
    if not exist:
        raise IndexError(f"A row of {index.tolist()} is outside a storage of {size} rows.")
    return found


class RowWriter(TensorDictRoundRobinWriter):
    """TorchRL's round-robin writer, without the ``"index"`` entry in the stored rows."""

    def extend(self, data: TensorDictBase) -> Tensor:
        """Writes rows and returns their slots."""
        slots = claim_slots(self, len(data))
        write_rows(self, slots, data)
        return slots
