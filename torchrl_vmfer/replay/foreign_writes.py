"""What a buffer must know of processes that write into its storage as well."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer

__all__ = ["ForeignWrites", "WriteLock"]


class ForeignWrites:
    """Tells which slots were written since it was last asked, by whatever process.

    A process marks the slots it writes in its own samplers only. But writers share their
    counters with each other, and round-robin ones write in order.
    """

    def __init__(self) -> None:
        self._count = self._cursor = 0

    def skip(self, writer: Writer) -> None:
        """Takes all that is written for known."""
        if isinstance(writer, RoundRobinWriter):
            self._count, self._cursor = writer._write_count, writer._cursor

    def slots(self, writer: Writer, storage: Storage) -> Tensor | None:
        """The slots along the first dimension, or ``None`` if there are none."""
        if not isinstance(writer, RoundRobinWriter):
            return None
        before, written = self._cursor, writer._write_count - self._count
        if written == 0:
            return None
        self.skip(writer)
        capacity = storage._max_size_along_dim0()
        in_order = (before + written - self._cursor) % capacity == 0
        if in_order and 0 < written < capacity:
            return (self._cursor - written + torch.arange(written)) % capacity
        # Once around, or at places of the writer's own choice.
        return torch.arange(len(storage) if storage.ndim == 1 else storage.shape[0])


class WriteLock:
    """A lock between processes that a process may take twice.

    One that dies keeps it; those that wait then get an error and do not hang.

    Attributes:
        timeout: after so many seconds an error is raised. What is done with a lock takes
            microseconds, or as long as it takes to copy the storage.
        while_waiting: is called every second, and may raise an error that knows more.
    """

    timeout = 60

    def __init__(self) -> None:
        self._lock = multiprocessing.RLock()
        self.while_waiting: Callable[[], None] | None = None

    def __enter__(self) -> None:
        for _ in range(self.timeout):
            if self._lock.acquire(timeout=1):
                return
            if self.while_waiting is not None:
                self.while_waiting()
        raise RuntimeError(
            f"The replay buffer was locked for {self.timeout} s: a process that was writing into "
            "it has died or was stopped. Start again from a checkpoint."
        )

    def __exit__(self, *exception: Any) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether this process holds it."""
        return self._lock._semlock._is_mine()  # type: ignore[attr-defined]
