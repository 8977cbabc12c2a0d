"""One replay buffer from which actor and critics draw in different ways."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import TensorStorage

from torchrl_vmfer.replay.foreign_writes import ForeignWrites, WriteLock
from torchrl_vmfer.samplers import RankPrioritizedSampler, VMFSampler

__all__ = ["ActorCriticReplayBuffer"]

_ACTOR_SAMPLER = "actor_sampler"
_PREFETCHED = "prefetched"


class ActorCriticReplayBuffer(TensorDictReplayBuffer):
    """A :class:`~torchrl.data.TensorDictReplayBuffer` with a second sampler for the actor.

    ``sample()`` and ``update_priority()`` serve the critics, as in any TorchRL buffer;
    ``sample_actor()`` and ``update_actor_priority()`` serve the actor. Both samplers follow one
    storage, one writer, one lock and one random generator, and one call saves or loads all.
    Files are read without executing code from them.

    Keyword Args:
        critic_sampler: any TorchRL sampler. Defaults to uniform sampling.
        actor_sampler: any TorchRL sampler. Defaults to :class:`~torchrl_vmfer.VMFSampler`.
        **kwargs: as in :class:`~torchrl.data.TensorDictReplayBuffer` (``storage``, ``writer``,
            ``batch_size``, ``prefetch``, ``generator``, ...). ``prefetch`` concerns the
            critics' batches only: the actor's follow the newest factors.

    Examples:
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
        >>> data = {"observation": torch.randn(10, 3), "action": torch.randn(10, 2)}
        >>> index = buffer.extend(TensorDict(data, [10]))
        >>> critic_batch = buffer.sample()
        >>> actor_batch = buffer.sample_actor(keys=["observation"])
        >>> sorted(actor_batch.keys())
        ['index', 'observation']
        >>> buffer.update_actor_priority(actor_batch["index"], torch.full((4,), 2.5))
    """

    _sampler: Sampler

    def __init__(
        self,
        *,
        critic_sampler: Sampler | Callable[[], Sampler] | None = None,
        actor_sampler: Sampler | Callable[[], Sampler] | None = None,
        **kwargs: Any,
    ) -> None:
        if "sampler" in kwargs:
            raise TypeError(
                "ActorCriticReplayBuffer has two samplers: pass `critic_sampler=` and "
                "`actor_sampler=` in place of `sampler=`."
            )
        self._actor_sampler_init: Any = VMFSampler if actor_sampler is None else actor_sampler
        self._foreign_writes = ForeignWrites()
        super().__init__(sampler=critic_sampler, **kwargs)

    def _init(self) -> None:
        if self._initialized:
            return
        # Before TorchRL's part, which hands its random generator to the samplers.
        self._actor_sampler = self._maybe_make_sampler(self._actor_sampler_init)
        super()._init()
        self._actor_sampler_init = None
        self._foreign_writes.skip(self._writer)

    def _initialize_prioritized_sampler(self) -> None:
        super()._initialize_prioritized_sampler()
        # TorchRL does it for one sampler, so that the actor's takes that one's place for once.
        critic_sampler, self._sampler = self._sampler, self._actor_sampler
        try:
            super()._initialize_prioritized_sampler()
        finally:
            self._sampler = critic_sampler

    @property
    def critic_sampler(self) -> Sampler:
        """The sampler behind ``sample()``."""
        return self.sampler

    @property
    def actor_sampler(self) -> Sampler:
        """The sampler behind ``sample_actor()``."""
        self._init()
        return self._actor_sampler

    def sample_actor(
        self, batch_size: int | None = None, *, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Samples a batch for the actor.

        Args:
            batch_size: defaults to the buffer's.
            keys: a list of the entries to read. The actor's update needs the observation only,
                and what is not asked for costs nothing. Defaults to all.

        Returns:
            the batch, with its slots under ``"index"``.
        """
        self._init()
        batch_size = self._batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError(
                "No batch size: pass it to sample_actor() or to the buffer's constructor."
            )
        if isinstance(keys, (str, tuple)):
            raise TypeError(f"keys must be a list of entries, got {keys!r}: pass [{keys!r}].")
        has_transform = self._transform is not None and len(self._transform) > 0
        with self._in_step():
            index, info = self._actor_sampler.sample(self._storage, batch_size)
            if self._writer.tracks_generations:
                info["index_generation"] = self._writer.generations_of(index)
            data = self._read(index, None if has_transform else keys)
        if has_transform:
            data = self._transform(data)
        if keys is not None and (has_transform or not isinstance(self._storage, TensorStorage)):
            data = data.select(*keys)
        info["index"] = torch.stack(index, -1) if isinstance(index, tuple) else index
        for key, value in info.items():
            data.set(key, value)
        return data

    def update_actor_priority(
        self, index: Any, factor: float | Tensor, generation: Tensor | None = None
    ) -> None:
        """Tells the actor's sampler the factors of some transitions.

        Args:
            index: the ``"index"`` entry of the actor's batch.
            factor: their sampling factors, such as ``metadata["vmf_factor"]``.
            generation: the ``"index_generation"`` entry, which batches have if the writer has
                ``track_generations=True``. Slots that were overwritten since keep the factor of
                a new transition.
        """
        self._init()
        with self._in_step():
            index, factor = self._live_rows(index, factor, generation)
            self._actor_sampler.update_priority(index, factor, storage=self._storage)

    def update_priority(
        self, index: Any, priority: float | Tensor, generation: Tensor | None = None
    ) -> None:
        """Tells the critics' sampler the priorities of some transitions.

        Args:
            index: the ``"index"`` entry of the critics' batch.
            priority: their priorities.
            generation: as in :meth:`update_actor_priority`.
        """
        self._init()
        with self._in_step():
            index, priority = self._live_rows(index, priority, generation)
            super().update_priority(index, priority)

    def _live_rows(self, index: Any, values: Any, generation: Tensor | None) -> tuple[Any, Any]:
        """The rows whose slots were not written since they had the given generations."""
        if isinstance(index, tuple):
            index = torch.stack(index, -1)
        if generation is None:
            return index, values
        if not self._writer.tracks_generations:
            raise ValueError(
                "The writer counts no generations: pass writer=TensorDictRoundRobinWriter("
                "track_generations=True) to the buffer."
            )
        index, values = torch.as_tensor(index), torch.as_tensor(values)
        live = self._writer.generations_of(index) == generation.to(index.device)
        return index[live], values if values.numel() == 1 else values[live.to(values.device)]

    def share(self, shared: bool = True) -> ActorCriticReplayBuffer:
        """Lets other processes write into the buffer. TorchRL's collectors call it.

        Their copies of the buffer write into the same storage. What they have written is seen,
        by both samplers, at the next call to a method of this one.
        """
        super().share(shared)
        if shared:
            self._write_lock = WriteLock()
            if getattr(self, "_initialized", False):
                self._foreign_writes.skip(self._writer)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if get_spawning_popen() is not None:
            # TorchRL would hand the process shared memory that is freed before it starts.
            state["_rng"] = None
        return state

    def _in_step(self) -> AbstractContextManager[Any]:
        """Holds the locks, and tells the samplers first of what other processes have written."""
        return self._in_shared_step() if self.shared else self._replay_lock

    @contextmanager
    def _in_shared_step(self) -> Iterator[None]:
        with self._replay_lock, self._write_lock:
            slots = self._foreign_writes.slots(self._writer, self._storage)
            if slots is not None:
                if self._writer.tracks_generations:
                    self._writer._bump_generation(slots, None)
                index = self._writer._replicate_index(slots)
                self.mark_update(index)
                self._sampler.extend(index)
            yield

    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        if not self.shared:  # and outside of the lock as much as TorchRL does
            return super()._sample(batch_size)
        with self._in_step():
            return super()._sample(batch_size)

    def _read(self, index: Any, keys: Sequence[NestedKey] | None) -> TensorDictBase:
        storage = self._storage
        if keys is None or not isinstance(storage, TensorStorage):
            return self._collate_fn(storage.get(index))
        rows = storage._storage
        if isinstance(index, tuple):
            return self._collate_fn(rows.select(*keys)[index])
        # Several times faster than indexing, for rows scattered over a large storage.
        columns = {key: _rows_of(rows[key], index) for key in keys}
        size = torch.Size([len(index)])
        if all(isinstance(key, str) for key in keys):
            # Without checks: they are what the storage has checked.
            return self._collate_fn(TensorDict._new_unsafe(columns, size, device=rows.device))
        return self._collate_fn(TensorDict(columns, size, device=rows.device))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Tells the critics' sampler the priorities in ``data``, as after a loss's ``forward``."""
        # TorchRL does so for its own PrioritizedSampler only, and passes over others silently.
        if not isinstance(self.critic_sampler, RankPrioritizedSampler):
            super().update_tensordict_priority(data)
        elif self.priority_key in data.keys(True):
            batch = data if data.ndim else data.unsqueeze(0)
            generation = batch.get("index_generation", None)
            self.update_priority(batch["index"], self._get_priority_vector(batch), generation)

    def mark_update(self, index: Any) -> None:
        """Tells both samplers of written slots. The writer calls it."""
        super().mark_update(index)
        self._actor_sampler.mark_update(index, storage=self._storage)
        if isinstance(index, Tensor):
            self._actor_sampler.extend(index)
        else:
            self._actor_sampler.add(index)

    def empty(self, empty_write_count: bool = True) -> None:
        """Empties the buffer, drops prefetched batches and resets both samplers."""
        self._init()
        with self._futures_lock:
            self._clear_prefetch_queue_locked()
            with self._replay_lock, self._write_lock:
                super().empty(empty_write_count=empty_write_count)
                self._actor_sampler._empty()
                self._foreign_writes.skip(self._writer)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Sets the random generator of the storage, the writer and both samplers."""
        super().set_rng(generator)
        self._actor_sampler._rng = generator

    def state_dict(self) -> dict[str, Any]:
        """The state of storage, writer, both samplers and random generator."""
        self._init()
        with self._capture_prefetch_state(), self._in_step():
            return super().state_dict() | {_ACTOR_SAMPLER: self._actor_sampler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state."""
        self._init()
        if _ACTOR_SAMPLER not in state_dict:
            raise ValueError(
                f"The state has no {_ACTOR_SAMPLER!r}: it is not one of ActorCriticReplayBuffer."
            )
        with self._futures_lock:
            self.synchronize()
            with self._replay_lock, self._keeping_actor_sampler():
                self._actor_sampler.load_state_dict(state_dict[_ACTOR_SAMPLER])
                super().load_state_dict(state_dict)
                self._foreign_writes.skip(self._writer)

    def dumps(self, path: str | Path) -> None:
        """Saves everything, the storage once, in the folder ``path``."""
        self._init()
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        with self._capture_prefetch_state(clone_queue=False), self._in_step():
            super().dumps(path)
            self._actor_sampler.dumps(path / _ACTOR_SAMPLER)

    def loads(self, path: str | Path) -> None:
        """Loads what :meth:`dumps` saved."""
        self._init()
        path = Path(path)
        # TorchRL reads these with pickle allowed, so they are first read without it.
        for folder in (path / "storage", path / "rng_state"):
            if folder.exists():
                TensorDict.load_memmap(folder, allow_pickle=False)
        with self._futures_lock:
            self.synchronize()
            with self._replay_lock, self._keeping_actor_sampler():
                self._actor_sampler.loads(path / _ACTOR_SAMPLER)
                super().loads(path)
                self._foreign_writes.skip(self._writer)

    @contextmanager
    def _keeping_actor_sampler(self) -> Iterator[None]:
        """Undoes what was loaded into the actor's sampler if the rest cannot be loaded."""
        before = self._actor_sampler.state_dict()
        try:
            yield
        except Exception:
            self._actor_sampler.load_state_dict(before)
            raise

    # TorchRL pickles the queue of prefetched batches; memory maps need no pickle.

    def _dump_prefetch_state(self, path: Path, prefetch_state: dict[str, Any]) -> None:
        folder = path / _PREFETCHED
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for position, (data, _) in enumerate(prefetch_state["queue"]):
            data.memmap(folder / str(position))
        infos = [info for _, info in prefetch_state["queue"]]
        torch.save(prefetch_state | {"queue": infos}, folder / "queue.pt")

    def _load_prefetch_state(self, path: Path) -> dict[str, Any] | None:
        folder = path / _PREFETCHED
        if not folder.exists():
            return None
        state = torch.load(folder / "queue.pt", weights_only=True)
        batches = [
            TensorDict.load_memmap(folder / str(position), allow_pickle=False).clone()
            for position in range(len(state["queue"]))
        ]
        return state | {"queue": list(zip(batches, state["queue"], strict=True))}


def _rows_of(column: Any, index: Tensor) -> Any:
    if not isinstance(column, Tensor):
        return column[index]
    return column.index_select(
        0, index if index.device == column.device else index.to(column.device)
    )
