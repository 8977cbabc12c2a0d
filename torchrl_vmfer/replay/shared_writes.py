"""Tracking of writes by other processes into the storage of a buffer."""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer

from torchrl_vmfer._torchrl import note_written, position

if TYPE_CHECKING:
    from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer


def is_in_ray_actor() -> bool:
    """Whether this process is a Ray actor, whose methods other processes call."""
    ray = sys.modules.get("ray")
    # A folder named `ray` can be imported as an empty module.
    is_initialized = getattr(ray, "is_initialized", bool)
    return is_initialized() and bool(ray.get_runtime_context().get_actor_id())  # type: ignore[union-attr]


class WriteTracker:
    """A record of the slots that any process has written since the last call.

    They follow from the counters that writers share, because round-robin writers write in order. A
    process reports the slots that it writes only to its own samplers.
    """

    def __init__(self) -> None:
        self._count = self._next = 0

    def skip(self, writer: Writer) -> None:
        """Records the current position of the writer."""
        if isinstance(writer, RoundRobinWriter):
            self._count, self._next = position(writer)

    def slots(self, writer: Writer, storage: Storage) -> Tensor | None:
        """The written slots along the first dimension, or ``None`` if there are none.

        They are in the order of the writes if these were in order, and otherwise all slots.
        """
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

    @contextmanager
    def locked(self, buffer: ActorCriticReplayBuffer) -> Iterator[None]:
        """Holds the locks of a buffer and reports the writes of other processes to its samplers."""
        with buffer.thread_lock, buffer.process_lock:
            slots = self.slots(buffer.writer, buffer.storage)
            if slots is not None:
                index = note_written(buffer.writer, slots)
                buffer.mark_update(index)
                buffer.sampler.extend(index)
            yield


class WriteLock:
    """A reentrant lock between processes.

    If a process dies while holding the lock, waiting processes raise an error instead of hanging.
    """

    timeout = 60  # seconds; usually it is held for microseconds, or for a copy of the storage

    def __init__(self) -> None:
        self._lock = multiprocessing.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self.timeout):
            raise RuntimeError(
                f"The replay buffer was locked for {self.timeout} s: a process that was writing "
                "into it has died or was stopped. Restart from a checkpoint."
            )

    def __exit__(self, *exception: Any) -> None:
        self._lock.release()
