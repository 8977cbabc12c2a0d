"""The interface to private names of torch, TorchRL and tensordict.

Other modules of the package use no private names. They access TorchRL's internals through the
public functions and base classes defined here. ``tests/test_torchrl_seam.py`` lists the private
names and checks that each of them exists and that no other module uses any. An upgrade of TorchRL
therefore breaks in one place, with a clear message.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchrl import objectives
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer
from torchrl.objectives.common import LossModule


def _public(name: str, meaning: str) -> Any:
    """A property with a public name for a private attribute."""
    return property(attrgetter(name), lambda self, value: setattr(self, name, value), doc=meaning)


# --- Losses ---------------------------------------------------------------------------------

Critics = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]

if TYPE_CHECKING:
    from torchrl.objectives.common import LossModule as LossMixin
else:
    # LossModule's metaclass would give a mixin a `forward` that hides that of its siblings.
    LossMixin = object

# How a loss calls its critics: the name of the batched callable, and whether all critics read
# the same inputs ``[*batch]``. Otherwise the i-th critic reads the i-th of ``[N, *batch]`` inputs.
_BATCHED_CRITICS: dict[type[LossModule], tuple[str, bool]] = {
    objectives.TD3Loss: ("_vmap_qvalue_network00", False),
    objectives.TD3BCLoss: ("_vmap_qvalue_network00", False),
    objectives.REDQLoss: ("_vmap_qvalue_network00", False),
    objectives.SACLoss: ("_vmap_qnetworkN0", True),  # and TQCLoss, which is derived from it
    objectives.CrossQLoss: ("_vmap_qnetworkN0", True),
    objectives.CQLLoss: ("_vmap_qvalue_networkN0", True),
}


def paired_critics(loss: LossModule) -> Critics:
    """The critics of a loss as one callable, where the i-th critic reads the i-th inputs."""
    return objectives.utils._vmap_func(
        loss.qvalue_network,
        randomness=loss.vmap_randomness,
        pseudo_vmap=getattr(loss, "deactivate_vmap", False),
    )


class TappedLoss(LossMixin):
    """A TorchRL loss that calls :meth:`critics` instead of its batched critics."""

    stock_critics: Critics  # those of the TorchRL loss
    paired_critics: Critics  # the i-th critic reads the i-th inputs
    has_shared_inputs: bool  # whether all of stock_critics read the same inputs

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Replaces ``stock_critics``."""
        raise NotImplementedError

    def weighted(
        self, loss: Tensor, weights: Tensor | None, tensordict: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Returns losses of transitions and their weights, before they are reduced."""
        raise NotImplementedError

    def _reduce_loss(
        self, loss: Tensor, tensordict: Any = None, *, weights: Any = None, **options: Any
    ) -> Tensor:
        loss, weights = self.weighted(loss, weights, tensordict)
        return super()._reduce_loss(loss, tensordict, weights=weights, **options)

    def _make_vmap(self) -> None:
        # TorchRL calls this at construction and whenever vmap_randomness changes.
        super()._make_vmap()
        name, self.has_shared_inputs = next(
            found for parent, found in _BATCHED_CRITICS.items() if isinstance(self, parent)
        )
        self.stock_critics = getattr(self, name)
        self.paired_critics = paired_critics(self) if self.has_shared_inputs else self.stock_critics
        setattr(self, name, self.critics)


def reduced(loss: LossModule, values: Tensor, tensordict: TensorDictBase) -> Tensor:
    """Reduces a loss ``[N, *batch]`` as the loss module specifies, ignoring masked entries."""
    return loss._reduce_loss(values, tensordict.unsqueeze(0))


def bounded_temperature(loss: objectives.REDQLoss) -> Tensor:
    """The temperature α of a REDQ loss, within its bounds and with gradient."""
    return loss._safe_log_alpha.exp()


def target_pairs(updater: objectives.SoftUpdate) -> list[tuple[Tensor, Tensor]]:
    """The pairs of a target parameter and its source parameter that an updater handles."""
    sources, targets = updater._sources.flatten_keys(), updater._targets.flatten_keys()
    return [(targets.get(f"target_{name}"), source) for name, source in sources.items()]


# --- Hooks and members of modules, in dictionaries that PyTorch changes in place -------------

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The hooks of a module."""
    return [getattr(module, name) for name in _HOOKS]


def global_hooks() -> list[dict[int, Any]]:
    """The hooks that are registered for all modules."""
    return [getattr(module_globals, f"_global{name}") for name in _HOOKS]


def members_of(module: nn.Module) -> list[dict[str, Any]]:
    """The submodules, parameters and buffers of a module."""
    return [module._modules, module._parameters, module._buffers]


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether a backward pass through the tensor calls hooks."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


# --- Samplers -------------------------------------------------------------------------------


class SeamSampler(Sampler):
    """TorchRL's sampler with public names for its private hooks."""

    reduction = "max"  # the buffer passes several TD errors for one transition
    generator: torch.Generator | None = _public(
        "_rng", "The random generator, which the buffer sets; ``None`` is PyTorch's global one."
    )

    def reset(self) -> None:
        """Resets to the state for an empty storage."""
        raise NotImplementedError

    def _empty(self) -> None:
        self.reset()


def set_generator(sampler: Sampler, generator: torch.Generator | None) -> None:
    """Sets the random generator of a sampler."""
    sampler._rng = generator


def empty_sampler(sampler: Sampler) -> None:
    """Resets any sampler to the state for an empty storage."""
    sampler._empty()


# --- Replay buffers -------------------------------------------------------------------------

Batch = tuple[TensorDictBase, dict[str, Any]]


class SeamReplayBuffer(TensorDictReplayBuffer):
    """TorchRL's buffer with public names for its private attributes and hooks."""

    _initialized: bool
    generator: torch.Generator | None = _public(
        "_rng", "The random generator; ``None`` is PyTorch's global one."
    )
    thread_lock = _public("_replay_lock", "The reentrant lock between the threads of this process.")
    process_lock = _public("_write_lock", "The lock between processes that share the buffer.")
    prefetch_lock = _public(
        "_futures_lock", "The lock of the prefetch queue. Acquire it before ``thread_lock``."
    )
    prefetch_capacity = _public("_prefetch_cap", "The length of the prefetch queue.")
    collate = _public("_collate_fn", "Collates the output of the storage into a batch.")
    stock_options = property(
        attrgetter("_prefetch", "_pin_memory", "_service_shutdown", "_sample_dependency"),
        doc="The options of ``sample()`` that only TorchRL's method implements.",
    )

    def draw_batch(self, batch_size: int) -> Batch:
        """Draws a batch for ``sample()``. May be called in a prefetching thread."""
        raise NotImplementedError

    def build(self) -> None:
        """Makes the components. Called once."""
        super()._init()

    def _init(self) -> None:
        if self._initialized:
            return
        try:
            self.build()
        except Exception:
            self._initialized = False
            raise

    @pin_memory_output
    def _sample(self, batch_size: int) -> Batch:
        return self.draw_batch(batch_size)

    def drop_transform(self) -> None:
        """Removes the transform. Even an empty one copies all data written to the buffer."""
        self._transform = None

    @contextmanager
    def holding_prefetched(self) -> Iterator[list[Batch]]:
        """Waits for prefetched batches and holds the thread lock. Yields copies of the batches."""
        with self._capture_prefetch_state() as state:
            yield list(state["queue"])

    def replace_prefetched(self, batches: list[Batch]) -> None:
        """Replaces the queue of prefetched batches."""
        self._clear_prefetch_queue_locked()
        state = {"version": 1, "capacity": self.prefetch_capacity, "queue": batches}
        self._restore_prefetch_queue_locked(state, clone_queue=False)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if get_spawning_popen() is not None:
            # TorchRL would pass shared memory that is freed before the new process starts.
            state["_rng"] = None
        return state


# --- Storages and writers -------------------------------------------------------------------


class MappableStorage(LazyTensorStorage):
    """TorchRL's storage, whose rows can be in memory-mapped files.

    Unlike those of TorchRL's ``LazyMemmapStorage``, the files have no name, so that the kernel
    deletes them when the process ends, for any reason, and their disk space is reserved first:
    a process that writes to a mapped file on a full disk is killed. Without a ``folder``, rows are
    in memory.
    """

    def __init__(self, max_size: int, *, folder: Path | None = None, **kwargs: Any) -> None:
        super().__init__(max_size, **kwargs)
        self._folder = folder

    def _init(self, data: TensorDictBase) -> None:
        if self._folder is None:
            super()._init(data)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._storage = data.expand(self.max_size, *data.shape).apply(self._mapped)
        self.initialized = True

    def _mapped(self, column: Tensor) -> Tensor:
        with tempfile.NamedTemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(column.numel() * column.element_size(), 1))
            mapped = torch.from_file(file.name, True, column.numel(), dtype=column.dtype)
        return mapped.view(column.shape)


unchecked_tensordict = TensorDict._new_unsafe


def entries_of(data: TensorDictBase) -> Any:
    """The entries of a TensorDict, to read and to assign without its checks of each value."""
    return data._tensordict if type(data) is TensorDict else data


def stored_rows(storage: Storage) -> TensorDictBase | None:
    """The TensorDict with all rows of a storage, or ``None`` for other kinds of storage."""
    rows = storage._storage if isinstance(storage, TensorStorage) else None
    return rows if isinstance(rows, TensorDictBase) else None


def replace_rows(storage: Storage, pieces: list[TensorDict], writer: Writer) -> None:
    """Replaces the contents of a storage with rows, in the order of their slots."""
    storage._empty()
    count = 0
    for piece in pieces:
        # A list storage keeps the rows themselves.
        rows = piece if isinstance(storage, TensorStorage) else piece.clone()
        storage.set(torch.arange(count, count + len(piece)), rows)
        count += len(piece)
    if isinstance(writer, RoundRobinWriter):
        # Slice samplers use it to find the newest row.
        storage._set_last_cursor(writer._cursor - 1 if writer._cursor else count - 1)


def revision(storage: Storage) -> int:
    """A counter of all changes to the stored data, including those not reported to samplers."""
    return int(storage._mutation_revision)


def track_generations(writer: Writer) -> None:
    """Makes a round-robin writer count the writes to each slot from now on."""
    if isinstance(writer, RoundRobinWriter) and not writer.tracks_generations:
        writer._track_generations = True


def position(writer: RoundRobinWriter) -> tuple[int, int]:
    """The number of rows that a round-robin writer has written, and the next slot."""
    return writer._write_count, writer._cursor


def note_written(writer: Writer, slots: Tensor) -> Tensor:
    """Counts slots that another process wrote. Returns the index to pass to ``mark_update``."""
    if writer.tracks_generations:
        writer._bump_generation(slots, None)
    return writer._replicate_index(slots)


def count_write(storage: LazyTensorStorage, count: int) -> None:
    """Adds ``count`` rows to the length of a storage, as one change of its data."""
    storage._len = min(storage._len + count, storage.max_size)
    revision = storage._mutation_revision_value
    if isinstance(revision, Tensor):
        counter = revision.numpy()  # much faster than PyTorch for one number
        counter += 1
    else:
        storage._bump_mutation_revision()


def append_rows(writer: TensorDictRoundRobinWriter, data: TensorDictBase) -> Tensor:
    """Writes rows to the next slots, notifies the attached buffers and returns the slots."""
    cursor, count, storage = writer._cursor, len(data), writer._storage
    writer._cursor = (cursor + count) % storage.max_size
    writer._write_count += count
    taken = np.arange(cursor, cursor + count)
    is_wrapped = cursor + count > storage.max_size
    slots = torch.from_numpy(taken % storage.max_size if is_wrapped else taken)
    storage.set(slots, data)
    if writer.tracks_generations:
        writer._bump_generation(slots, data)
    for buffer in storage._attached_entities:
        buffer.mark_update(slots)
    return slots
