"""Tracking of writes by other processes into the storage of a buffer."""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer

from torchrl_vmfer._torchrl import is_held_here, position

__all__ = ["SharedWrites", "WriteLock", "is_in_ray_actor"]


def is_in_ray_actor() -> bool:
    """Whether this process is a Ray actor, whose methods other processes call."""
    ray = sys.modules.get("ray")
    # A folder named `ray` can be imported as an empty module.
    is_initialized = getattr(ray, "is_initialized", None)
    return (
        ray is not None
        and is_initialized is not None
        and is_initialized()
        and bool(ray.get_runtime_context().get_actor_id())
    )


class SharedWrites:
    """A record of the slots that any process has written since the last call.

    A process reports the slots that it writes only to its own samplers. The slots written by other
    processes follow from the counters that writers share, because round-robin writers write in
    order.
    """

    def __init__(self) -> None:
        self._count = self._next = 0

    def skip(self, writer: Writer) -> None:
        """Records the current position of the writer."""
        if isinstance(writer, RoundRobinWriter):
            self._count, self._next = position(writer)

    def slots(self, writer: Writer, storage: Storage) -> Tensor | None:
        """The written slots along the first dimension, or ``None`` if there are none."""
        if not isinstance(writer, RoundRobinWriter):
            return None
        before, written = self._next, position(writer)[0] - self._count
        if written == 0:
            return None
        self.skip(writer)
        row_size = 1 if storage.ndim == 1 else storage.shape[1:].numel()
        capacity = math.ceil(storage.max_size / row_size)
        in_order = (before + written - self._next) % capacity == 0
        if in_order and 0 < written < capacity:
            return (self._next - written + torch.arange(written)) % capacity
        # All slots were written, or slots chosen by the caller.
        return torch.arange(len(storage) if storage.ndim == 1 else storage.shape[0])


class WriteLock:
    """A reentrant lock between processes.

    If a process dies while holding the lock, waiting processes raise an error instead of hanging.
    They call ``while_waiting`` every second, which may raise a more specific error.
    """

    timeout = 60  # seconds; usually it is held for microseconds, or for a copy of the storage

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
            "it has died or was stopped. Restart from a checkpoint."
        )

    def __exit__(self, *exception: Any) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether this process holds the lock."""
        return is_held_here(self._lock)
