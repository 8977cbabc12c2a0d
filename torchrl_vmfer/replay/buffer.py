"""One replay buffer with separate samplers for the actor and the critics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import (
    SeamReplayBuffer,
    empty_sampler,
    set_generator,
    stored_rows,
    track_generations,
    unchecked_tensordict,
)
from torchrl_vmfer.plain_state import load_file, save_file
from torchrl_vmfer.replay import state
from torchrl_vmfer.replay.shared_writes import WriteLock, WriteTracker, is_in_ray_actor
from torchrl_vmfer.samplers import VMFSampler
from torchrl_vmfer.samplers.adapters import (
    one_per_item,
    reduced,
    report_existing,
    signal_of,
    takes_td_errors,
)
from torchrl_vmfer.samplers.base import SIGNAL_ENTRIES
from torchrl_vmfer.samplers.distributions import uniform

_CPU = torch.device("cpu")
_FILE = "replay_buffer.pt"
Draw = Callable[[Storage, int], tuple[Any, dict[str, Any]]]


class ActorCriticReplayBuffer(SeamReplayBuffer):
    """A :class:`~torchrl.data.TensorDictReplayBuffer` with a second sampler for the actor.

    ``sample()`` and ``update_priority()`` serve the critics, as in any TorchRL buffer;
    ``sample_actor()`` and ``update_actor_priority()`` serve the actor. Both samplers share one
    storage, one writer, one lock and one random generator.

    ``state_dict()`` and ``dumps()`` save all of these, and the live rows, as plain tensors, numbers
    and strings. Loading a state executes no code; an incompatible state changes nothing.

    If other processes write to the buffer (``share()``, TorchRL's multi-process collectors, Ray),
    the writer counts the generations of the slots, batches have the entry ``"index_generation"``,
    and the buffer drops factors that arrive after their slot was overwritten. ``torch.compile``
    excludes all methods from its graphs.

    Keyword Args:
        critic_sampler: any TorchRL sampler. Defaults to uniform sampling. ``sampler`` is an alias,
            which does not accept samplers that use factors.
        actor_sampler: any TorchRL sampler. Defaults to :class:`~torchrl_vmfer.VMFSampler`.
        **kwargs: as in :class:`~torchrl.data.TensorDictReplayBuffer` (``storage``, ``writer``,
            ``batch_size``, ``prefetch``, ``generator``, ...). ``prefetch`` applies to
            the critics' batches only: the actor's batches use the newest factors.
            ``sample_unit`` and ``consume_after_n_samples`` are not supported.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
        >>> data = {"observation": torch.randn(10, 3), "action": torch.randn(10, 2)}
        >>> index = buffer.extend(TensorDict(data, [10]))
        >>> critic_batch = buffer.sample()
        >>> actor_batch = buffer.sample_actor(keys=["observation"])
        >>> sorted(actor_batch.keys())
        ['index', 'observation']
        >>> buffer.update_actor_priority(actor_batch, torch.full((4,), 2.5))
    """

    def __init__(
        self,
        *,
        critic_sampler: Sampler | Callable[[], Sampler] | None = None,
        actor_sampler: Sampler | Callable[[], Sampler] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        **kwargs: Any,
    ) -> None:
        if sampler is not None and critic_sampler is not None:
            raise TypeError(
                "`sampler=` is another name for `critic_sampler=`: pass only one of them. The "
                "actor's sampler is `actor_sampler=`."
            )
        if actor_sampler is None and getattr(sampler, "signal", None) == "factor":
            raise TypeError(
                f"sampler={sampler!r} would draw the critics' batches: pass it as `actor_sampler=`."
            )
        for option in ("sample_unit", "consume_after_n_samples"):
            if kwargs.get(option) is not None:
                raise ValueError(
                    f"{type(self).__name__} draws single transitions for the actor, any number of "
                    f"times: leave out {option}={kwargs[option]!r}."
                )
        self._actor_sampler: Any = VMFSampler if actor_sampler is None else actor_sampler
        self._shared_writes = WriteTracker()
        self._last_draw: tuple[Tensor, Tensor] | None = None  # the actor's index and its generation
        super().__init__(sampler=sampler if critic_sampler is None else critic_sampler, **kwargs)

    def build(self) -> None:
        """Makes the components, and reports the stored data to the actor's sampler."""
        sampler = self._actor_sampler
        if not isinstance(sampler, Sampler) and callable(sampler):
            sampler = sampler()
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"actor_sampler must be a Sampler or a function that makes one, got {sampler!r}."
            )
        self._actor_sampler = sampler
        super().build()
        # TorchRL does this for the critics' sampler.
        report_existing(self._actor_sampler, self.storage)
        if self.shared or is_in_ray_actor():
            track_generations(self.writer)
        self.forget_writes()

    @property
    def critic_sampler(self) -> Sampler:
        """The sampler behind ``sample()``."""
        return self.sampler

    @property
    def actor_sampler(self) -> Sampler:
        """The sampler behind ``sample_actor()``."""
        _ = self.storage  # makes the components of a buffer with ``delayed_init=True``
        return self._actor_sampler

    @property
    def has_transform(self) -> bool:
        """Whether batches are transformed."""
        return self.transform is not None and len(self.transform) > 0

    @property
    def is_direct(self) -> bool:
        """Whether rows are written and batches are read by this process alone, unchanged.

        There are no transforms and no prefetched batches, and the storage is on the CPU.
        """
        return (
            self.initialized
            and self.transform is None
            and not (self.shared or any(self.stock_options) or self.dim_extend)
            and self.storage.device == _CPU
        )

    def __repr__(self) -> str:
        parts = ("storage", "critic_sampler", "actor_sampler", "writer", "batch_size")
        lines = (f"    {name}={getattr(self, name)!r},\n" for name in parts)
        return f"{type(self).__name__}(\n{''.join(lines)})"

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Sets the random generator of the storage, the writer and both samplers."""
        super().set_rng(generator)
        set_generator(self._actor_sampler, generator)

    # --- Sampling.

    @torch.compiler.disable
    def sample(self, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Samples a batch for the critics. The arguments are those of TorchRL's method."""
        if batch_size is not None or args or kwargs or not self.is_direct:
            return super().sample(batch_size, *args, **kwargs)
        return self._sample_with(self.sampler.sample, None, None)

    @torch.compiler.disable
    def sample_actor(
        self, batch_size: int | None = None, *, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Samples a batch for the actor.

        The batch has its slots under ``"index"``.

        Args:
            batch_size: defaults to the buffer's.
            keys: a list of the entries to read, all by default. The actor update only needs
                the observation, so the buffer can skip the other entries.
        """
        batch = self._sample_with(self.actor_sampler.sample, batch_size, keys)
        if self.writer.tracks_generations:
            self._last_draw = batch["index"], batch["index_generation"]
        return batch

    @torch.compiler.disable
    def sample_uniformly(
        self, batch_size: int | None = None, *, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Samples as :meth:`sample_actor`, but uniformly with replacement."""
        return self._sample_with(self._draw_uniformly, batch_size, keys)

    def _draw_uniformly(self, storage: Storage, count: int) -> tuple[Any, dict[str, Any]]:
        if len(storage) == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        slots = torch.from_numpy((uniform(count, self.generator) * len(storage)).astype(np.int64))
        return slots if storage.ndim == 1 else torch.unravel_index(slots, storage.shape), {}

    def _sample_with(
        self, draw: Draw, batch_size: int | None, keys: Sequence[NestedKey] | None
    ) -> TensorDictBase:
        batch_size = self.batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError("No batch size: pass it to this method or to the constructor.")
        if isinstance(keys, (str, tuple)):
            raise TypeError(f"keys must be a list of entries, got {keys!r}: pass [{keys!r}].")
        data, info = self.draw_batch(batch_size, draw, keys)
        for key, value in info.items():
            value = torch.as_tensor(torch.stack(value, -1) if isinstance(value, tuple) else value)
            data[key] = value if value.ndim >= data.ndim else expand_as_right(value, data)
        return data

    def draw_slots(self, sampler: Sampler) -> TensorDictBase:
        """Draws a batch that holds its slots and the sampler's metadata, but no stored entries."""
        with self.locked():
            index, info = sampler.sample(self.storage, self.batch_size or 0)
        info = {key: torch.as_tensor(value) for key, value in info.items()}
        return unchecked_tensordict({**info, "index": index}, torch.Size([len(index)]))

    def draw_batch(
        self,
        batch_size: int,
        draw: Draw | None = None,
        keys: Sequence[NestedKey] | None = None,
    ) -> tuple[TensorDictBase, dict[str, Any]]:
        """Draws, reads and transforms a batch, for the critics by default. Adds its metadata."""
        draw = self.sampler.sample if draw is None else draw
        has_transform = self.has_transform  # a transform may read any entry
        with self.locked():
            index, info = draw(self.storage, batch_size)
            info["index"] = index
            if self.writer.tracks_generations:
                info["index_generation"] = self.writer.generations_of(index)
            data = self.read_rows(index, None if has_transform else keys)
        if has_transform:
            data = self.transform(data)
            data = data if keys is None else data.select(*keys)
        return data, info

    def read_rows(self, index: Any, keys: Sequence[NestedKey] | None) -> TensorDictBase:
        """Reads the given entries of some transitions, or all entries with ``keys=None``."""
        rows = stored_rows(self.storage)
        if keys is not None and rows is not None and isinstance(index, Tensor):
            columns = {key: rows.get(key, None) for key in keys if isinstance(key, str)}
            if all(isinstance(columns.get(key), Tensor) for key in keys):
                # Several times faster than indexing, for rows scattered over a large storage.
                columns = {
                    key: column.index_select(0, index.to(column.device))
                    for key, column in columns.items()
                }
                size = torch.Size([len(index)])
                return self.collate(unchecked_tensordict(columns, size, rows.device))
        batch = self.collate(self.storage.get(index))
        return batch if keys is None else batch.select(*keys)

    # --- Priorities.

    @torch.compiler.disable
    def update_actor_priority(
        self, index: Any, factor: float | Tensor, generation: Tensor | None = None
    ) -> None:
        """Updates the factors of some transitions in the actor's sampler.

        Args:
            index: the actor's batch, or its ``"index"`` entry.
            factor: their sampling factors, such as ``metadata["vmf_factor"]``. If the items of the
                buffer are trajectories, the factors ``[batch, time]`` of each are reduced as the
                sampler's ``reduction`` says, as in TorchRL's prioritized buffers.
            generation: the ``"index_generation"`` entry, which batches have if other processes
                write or if the writer has ``track_generations=True``. Slots that were overwritten
                since then keep the factor of the new transition. Not needed if ``index`` is a batch
                or the index of the last batch drawn.
        """
        if isinstance(index, TensorDictBase):
            index, generation = index["index"], index.get("index_generation", generation)
        if generation is None and self._last_draw is not None and isinstance(index, Tensor):
            drawn, drawn_generation = self._last_draw
            if torch.equal(index.to(drawn.device), drawn):
                generation = drawn_generation
        self._update(self.actor_sampler, index, factor, generation)

    @torch.compiler.disable
    def update_priority(
        self, index: Any, priority: float | Tensor, generation: Tensor | None = None
    ) -> None:
        """Updates the priorities of some transitions in the critics' sampler.

        The arguments are those of :meth:`update_actor_priority`, but ``index`` is not a batch.
        """
        self._update(self.sampler, index, priority, generation)

    @torch.compiler.disable
    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Updates both samplers with the entries that ``forward`` of a loss wrote into a batch.

        A sampler of the critics by TD errors uses ``priority_key``, the actor's sampler
        ``"vmf_factor"``, or ``"vmf_gradient_norm"`` if it samples by gradient norms. Missing
        entries are skipped.
        """
        batch = data if data.ndim else data.unsqueeze(0)
        # TorchRL's method is not used: it ignores all samplers but its own, and assigns the highest
        # priority to a batch that lacks the entry.
        if takes_td_errors(self.critic_sampler) and self.priority_key in data.keys(True):
            generation = batch.get("index_generation", None)
            errors = batch.get(self.priority_key).reshape(*batch.shape, -1)
            priorities = reduced(errors, self.critic_sampler)
            self.update_priority(batch["index"], priorities, generation)
        entry = SIGNAL_ENTRIES.get(signal_of(self.actor_sampler) or "")
        values = None if entry is None else batch.get(entry, None)
        if values is not None:
            self.update_actor_priority(batch, values)

    def _update(self, sampler: Sampler, index: Any, values: Any, generation: Tensor | None) -> None:
        """Updates a sampler with values for the slots that still have the given generation."""
        if isinstance(index, tuple):
            index = torch.stack(index, -1)
        values = torch.as_tensor(values)
        with self.locked():
            if self.storage.ndim == 1 and getattr(index, "ndim", 0) == 2:  # trajectories
                index, values, generation = one_per_item(index, values, generation, sampler)
            if generation is not None and self.writer.tracks_generations:
                index = torch.as_tensor(index)
                live = self.writer.generations_of(index) == generation.to(index.device)
                index = index[live]
                values = values if values.numel() == 1 else values[live.to(values.device)]
            sampler.update_priority(index, values, storage=self.storage)

    # --- Writes by this process and by others.

    def mark_update(self, index: Any) -> None:
        """Reports written slots to both samplers. Called by the writer."""
        super().mark_update(index)
        self._actor_sampler.mark_update(index, storage=self.storage)
        if isinstance(index, Tensor):
            self._actor_sampler.extend(index)
        else:
            self._actor_sampler.add(index)

    def empty(self, empty_write_count: bool = True) -> None:
        """Empties the buffer, drops prefetched batches and resets both samplers."""
        with self.prefetch_lock:
            self.replace_prefetched([])
            with self.thread_lock, self.process_lock:
                super().empty(empty_write_count=empty_write_count)
                empty_sampler(self._actor_sampler)
                self.forget_writes()

    def share(self, shared: bool = True) -> ActorCriticReplayBuffer:
        """Lets other processes write into the buffer. Called by TorchRL's collectors.

        The copies of the buffer in other processes write into the same storage. The next method
        call on this buffer reports their writes to both samplers.
        """
        super().share(shared)
        if shared:
            self.process_lock = WriteLock()
            if self.initialized:
                track_generations(self.writer)
                self.forget_writes()
        return self

    def forget_writes(self) -> None:
        """Starts tracking writes again, after the contents were replaced."""
        self._shared_writes.skip(self.writer)

    def locked(self) -> AbstractContextManager[Any]:
        """Holds the locks and updates both samplers with the writes of other processes."""
        return self._shared_writes.locked(self) if self.shared else self.thread_lock

    # --- Saving and loading.

    def state_dict(self, *, copy_rows: bool = True) -> dict[str, Any]:
        """Copies live rows, writer, both samplers, generator, transform and prefetched batches.

        Args:
            copy_rows: with ``False``, the rows are views of the storage, which change with it.
        """
        with self.holding_prefetched() as prefetched, self.locked():
            return state.state_of(self, prefetched, copy_rows)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces everything with a copy of a state. An incompatible state changes nothing."""
        with self.prefetch_lock:
            self.synchronize()
            with self.locked():
                state.load_state(self, state_dict)
                self.forget_writes()

    def dumps(self, path: str | Path) -> None:
        """Saves the state in the folder ``path``. A failed save leaves the one before intact."""
        save_file(self.state_dict(), Path(path) / _FILE)

    def loads(self, path: str | Path) -> None:
        """Loads a state saved by :meth:`dumps`."""
        self.load_state_dict(load_file(Path(path) / _FILE))
