"""The interface to private names of torch, TorchRL and tensordict.

Other modules of the package use no private names. They access TorchRL's internals through the
public functions and base classes defined here. :data:`RELIED_ON` lists the private names, and
``tests/test_torchrl_seam.py`` checks that each of them exists and that no other module uses any. An
upgrade of TorchRL therefore breaks in one place, with a clear message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from multiprocessing.context import get_spawning_popen
from multiprocessing.synchronize import SemLock
from operator import contains
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer
from torchrl.objectives import (
    CQLLoss,
    CrossQLoss,
    REDQLoss,
    SACLoss,
    SoftUpdate,
    TD3BCLoss,
    TD3Loss,
)
from torchrl.objectives import utils as objective_utils
from torchrl.objectives.common import LossModule

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
    TD3Loss: ("_vmap_qvalue_network00", False),
    TD3BCLoss: ("_vmap_qvalue_network00", False),
    REDQLoss: ("_vmap_qvalue_network00", False),
    SACLoss: ("_vmap_qnetworkN0", True),  # and TQCLoss, which is derived from it
    CrossQLoss: ("_vmap_qnetworkN0", True),
    CQLLoss: ("_vmap_qvalue_networkN0", True),
}


def paired_critics(loss: LossModule) -> Critics:
    """The critics of a loss as one callable, where the i-th critic reads the i-th inputs."""
    return objective_utils._vmap_func(
        loss.qvalue_network,
        randomness=loss.vmap_randomness,
        pseudo_vmap=getattr(loss, "deactivate_vmap", False),
    )


class TappedLoss(LossMixin):
    """A TorchRL loss that calls :meth:`critics` instead of its batched critics.

    Attributes:
        stock_critics: the batched critics of the TorchRL loss.
        paired_critics: the batched critics, where the i-th critic reads the i-th inputs.
        has_shared_inputs: whether all of ``stock_critics`` read the same inputs.
    """

    stock_critics: Critics
    paired_critics: Critics
    has_shared_inputs: bool

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Replaces ``stock_critics``."""
        raise NotImplementedError

    def _make_vmap(self) -> None:
        # TorchRL calls this at construction and whenever vmap_randomness changes.
        super()._make_vmap()
        name, self.has_shared_inputs = next(
            found for parent, found in _BATCHED_CRITICS.items() if isinstance(self, parent)
        )
        self.stock_critics = getattr(self, name)
        self.paired_critics = paired_critics(self) if self.has_shared_inputs else self.stock_critics
        setattr(self, name, self.critics)


def temperature(loss: SACLoss) -> Tensor:
    """The temperature α of a SAC loss, within its bounds and without gradient."""
    return loss._alpha


def reduced(loss: LossModule, values: Tensor, tensordict: TensorDictBase) -> Tensor:
    """Reduces a loss ``[N, *batch]`` as the loss module specifies, ignoring masked entries."""
    return loss._reduce_loss(values, tensordict.unsqueeze(0))


def bounded_temperature(loss: REDQLoss) -> Tensor:
    """The temperature α of a REDQ loss, within its bounds and with gradient."""
    return loss._safe_log_alpha.exp()


# --- Networks and gradients -----------------------------------------------------------------

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_module_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, or a ``forward`` that was assigned to the instance."""
    return "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether a backward pass through the tensor calls hooks."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


class ModuleWatch:
    """Detects hooks on networks, replaced submodules and replaced tensors, within microseconds.

    Args:
        loss: a loss, whose own parameters and modules are watched.
        *networks: networks, which are watched with all their parts.
    """

    def __init__(self, loss: nn.Module, *networks: nn.Module) -> None:
        parts = [part for network in networks for part in network.modules()]
        # PyTorch changes these dictionaries in place.
        self._attributes = [vars(part) for part in parts]
        self._hooks = [getattr(part, name) for part in parts for name in _HOOKS]
        self._hooks += [getattr(module_globals, f"_global{name}") for name in _HOOKS]
        self._entries: list[dict[str, Any]] = [part._modules for part in parts if part._modules]
        self._entries += [loss._modules, loss._parameters, loss._buffers]
        self._seen = self.identities()

    def identities(self) -> list[list[int]]:
        """The identities of all parts and members."""
        return [list(map(id, entries.values())) for entries in self._entries]

    def has_hooks(self) -> bool:
        """Whether any of the networks has a hook, or a global module hook is registered.

        A ``forward`` that was assigned to an instance counts as a hook.
        """
        return any(self._hooks) or any(map(contains, self._attributes, repeat("forward")))

    def is_unchanged(self) -> bool:
        """Whether the networks still have the same parts, and the loss the same members."""
        return self.identities() == self._seen


# --- Optimizers -----------------------------------------------------------------------------


def target_pairs(updater: SoftUpdate) -> list[tuple[Tensor, Tensor]]:
    """The pairs of a target parameter and its source parameter that an updater handles."""
    sources, targets = updater._sources.flatten_keys(), updater._targets.flatten_keys()
    return [(targets.get(f"target_{name}"), source) for name, source in sources.items()]


# --- Replay buffers and samplers ------------------------------------------------------------


class SeamSampler(Sampler):
    """TorchRL's sampler with public names for its private hooks."""

    reduction = "max"  # of several TD errors for one transition, which the buffer passes

    @property
    def generator(self) -> torch.Generator | None:
        """The random generator; ``None`` is PyTorch's global one. The buffer sets it."""
        return self._rng

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self._rng = generator

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


_CPU = torch.device("cpu")


class SeamReplayBuffer(TensorDictReplayBuffer):
    """TorchRL's buffer with public names for its private hooks.

    Subclasses define ``make_parts``, ``check_parts`` and ``draw_batch``.
    """

    _initialized: bool

    def make_parts(self) -> None:
        """Makes additional components, before TorchRL makes its own."""
        raise NotImplementedError

    def check_parts(self) -> None:
        """Raises an error if the components are not compatible."""
        raise NotImplementedError

    def draw_batch(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        """Draws a batch for ``sample()``. May be called in a prefetching thread."""
        raise NotImplementedError

    def ensure_built(self) -> None:
        """Makes the components now, if the buffer was constructed with ``delayed_init=True``."""
        self._init()

    def _init(self) -> None:
        if self._initialized:
            return
        self.make_parts()
        super()._init()
        try:
            self.check_parts()
        except Exception:
            self._initialized = False
            raise

    @pin_memory_output
    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        return self.draw_batch(batch_size)

    @property
    def is_built(self) -> bool:
        """Whether the components have been made."""
        return getattr(self, "_initialized", False)

    @property
    def generator(self) -> torch.Generator | None:
        """The random generator; ``None`` is PyTorch's global one."""
        self._init()
        return self._rng

    @property
    def has_transform(self) -> bool:
        """Whether batches are transformed."""
        return self._transform is not None and len(self._transform) > 0

    @property
    def is_direct(self) -> bool:
        """Whether rows are written and batches are read by this process alone, unchanged.

        There are no transforms, and no prefetched batches, and the storage is on the CPU.
        """
        return (
            self._initialized
            and self._transform is None
            and not (self.shared or self._prefetch or self._pin_memory or self._service_shutdown)
            and self._sample_dependency is None
            and self._dim_extend == 0
            and self._storage.device == _CPU
        )

    def drop_transform(self) -> None:
        """Removes the transform. Even an empty one copies all data written to the buffer."""
        self._init()
        self._transform = None

    @property
    def thread_lock(self) -> AbstractContextManager[Any]:
        """The reentrant lock between the threads of this process."""
        return self._replay_lock

    @property
    def process_lock(self) -> Any:
        """The lock between the processes that share the buffer."""
        return self._write_lock

    @process_lock.setter
    def process_lock(self, lock: AbstractContextManager[Any]) -> None:
        self._write_lock = lock

    def collate(self, data: Any) -> TensorDictBase:
        """Collates the output of the storage into a batch."""
        return self._collate_fn(data)

    def priorities_in(self, batch: TensorDictBase) -> Tensor:
        """The entry ``priority_key`` as one number per transition."""
        if hasattr(self.sampler, "reduction"):
            return self._get_priority_vector(batch)
        return batch.get(self.priority_key).reshape(*batch.shape, -1).amax(-1)

    @contextmanager
    def holding_prefetched(self) -> Iterator[list[tuple[TensorDictBase, dict[str, Any]]]]:
        """Waits for prefetched batches and holds the thread lock. Yields copies of the batches."""
        with self._capture_prefetch_state() as state:
            yield list(state["queue"])

    @property
    def prefetch_lock(self) -> AbstractContextManager[Any]:
        """The lock of the prefetch queue. Acquire it before ``thread_lock``."""
        return self._futures_lock

    def check_prefetched(self, batches: list[Any]) -> None:
        """Raises an error if the prefetch queue is too small for the batches."""
        if len(batches) > self._prefetch_cap:
            raise ValueError(
                f"The state holds {len(batches)} prefetched batches, but the buffer has "
                f"prefetch={self._prefetch_cap}: construct it with the prefetch= of the saved one."
            )

    def replace_prefetched(self, batches: list[tuple[TensorDictBase, dict[str, Any]]]) -> None:
        """Replaces the queue of prefetched batches."""
        self._clear_prefetch_queue_locked()
        state = {"version": 1, "capacity": self._prefetch_cap, "queue": batches}
        self._restore_prefetch_queue_locked(state, clone_queue=False)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if get_spawning_popen() is not None:
            # TorchRL would pass shared memory that is freed before the new process starts.
            state["_rng"] = None
        return state


def track_generations(writer: Writer) -> None:
    """Makes a round-robin writer count the writes to each slot from now on."""
    if isinstance(writer, RoundRobinWriter) and not writer.tracks_generations:
        writer._track_generations = True


def position(writer: RoundRobinWriter) -> tuple[int, int]:
    """The number of rows that a round-robin writer has written, and the next slot."""
    return writer._write_count, writer._cursor


def note_written(writer: Writer, slots: Tensor) -> Tensor:
    """Counts slots that another process wrote. Returns the index that TorchRL marks for them."""
    if writer.tracks_generations:
        writer._bump_generation(slots, None)
    return writer._replicate_index(slots)


def writer_state(writer: Writer, length: int) -> dict[str, Any]:
    """The state of a writer for the first ``length`` slots."""
    state = dict(writer.state_dict())
    generation = state.get("_generation")
    if generation is not None:
        state["_generation"] = generation[:length].clone()
    return state


def stored_rows(storage: Storage) -> TensorDictBase | None:
    """The TensorDict with all rows of a storage, or ``None`` for other kinds of storage."""
    rows = storage._storage if isinstance(storage, TensorStorage) else None
    return rows if isinstance(rows, TensorDictBase) else None


def capacity_along_dim0(storage: Storage) -> int:
    """The number of rows that fit along the first dimension."""
    return storage._max_size_along_dim0()


def replace_rows(storage: Storage, rows: Any, count: int, writer: Writer) -> None:
    """Replaces the contents of a storage with ``count`` rows along the first dimension."""
    storage._empty()
    if count:
        storage.set(torch.arange(count), rows)
    if isinstance(writer, RoundRobinWriter):
        # Slice samplers use it to find the newest row.
        storage._set_last_cursor(writer._cursor - 1 if writer._cursor else count - 1)


def revision(storage: Storage) -> int:
    """A counter of all changes to the stored data, including those not reported to samplers."""
    return int(storage._mutation_revision)


def revisions_of_write(storage: Storage, count: int) -> int:
    """The increment of :func:`revision` for a single write of ``count`` rows."""
    return count if isinstance(storage, ListStorage) else 1


def prioritized_state(sampler: PrioritizedSampler, length: int) -> dict[str, Any]:
    """The state of TorchRL's sampler as plain tensors and numbers.

    TorchRL's own state holds C++ trees, which only pickle can save. The leaves determine the inner
    nodes of a tree.
    """
    leaves = torch.empty(0)
    if length:
        # The tree returns a number for a single slot.
        leaves = torch.as_tensor(sampler._sum_tree[torch.arange(length)]).reshape(-1).cpu()
    return {
        "sampler": type(sampler).__name__,
        "alpha": float(sampler.alpha),
        "beta": float(sampler.beta),
        "epsilon": sampler._eps,
        "max_priority": list(sampler._max_priority),
        "leaves": leaves,
    }


def load_prioritized_state(sampler: PrioritizedSampler, state: dict[str, Any]) -> None:
    """Loads the output of :func:`prioritized_state`."""
    if state.get("sampler") != type(sampler).__name__:
        raise ValueError(
            f"The state was not saved by {type(sampler).__name__} but by "
            f"{state.get('sampler') or 'another class'}: load it into a sampler of the class that "
            "saved it."
        )
    leaves, alpha, beta = state["leaves"], state["alpha"], state["beta"]
    if not isinstance(leaves, Tensor) or leaves.ndim != 1 or len(leaves) > sampler.max_size:
        raise ValueError(
            f"The priorities of the state do not fit a {type(sampler).__name__} of "
            f"{sampler.max_size} slots."
        )
    epsilon, max_priority = state["epsilon"], tuple(state["max_priority"])
    sampler._empty()
    sampler.alpha, sampler.beta, sampler._eps = alpha, beta, epsilon
    if len(leaves):
        slots = torch.arange(len(leaves))
        sampler._sum_tree[slots] = leaves
        sampler._min_tree[slots] = leaves
    sampler._max_priority = max_priority


def is_held_here(lock: Any) -> bool:
    """Whether this process holds a lock of :mod:`multiprocessing`."""
    return lock._semlock._is_mine()


# --- Storage and writer of the fast path ----------------------------------------------------

unchecked_tensordict = TensorDict._new_unsafe


def entries_of(data: TensorDictBase) -> Any:
    """The entries of a TensorDict, to read and to assign without its checks of each value."""
    return data._tensordict if type(data) is TensorDict else data


def count_write(storage: LazyTensorStorage, count: int) -> None:
    """Adds ``count`` rows to the length of a storage, as one change of its data."""
    storage._len = min(len(storage) + count, storage.max_size)
    revision = storage._mutation_revision_value
    if isinstance(revision, Tensor):
        counter = revision.numpy()  # much faster than PyTorch for one number
        counter += 1
    else:
        storage._bump_mutation_revision()


def claim_slots(writer: TensorDictRoundRobinWriter, count: int) -> Tensor:
    """Reserves the next ``count`` slots and advances the cursor of the writer."""
    cursor: int = writer._cursor
    size = writer._storage.max_size
    writer._cursor = (cursor + count) % size
    writer._write_count += count
    slots = np.arange(cursor, cursor + count)
    return torch.from_numpy(slots if cursor + count <= size else slots % size)


def write_rows(writer: TensorDictRoundRobinWriter, slots: Tensor, data: TensorDictBase) -> None:
    """Writes rows to slots of the writer's storage and notifies the attached buffers."""
    writer._storage.set(slots, data)
    if writer.tracks_generations:
        writer._bump_generation(slots, data)
    for buffer in writer._storage._attached_entities:
        buffer.mark_update(slots)


# --------------------------------------------------------------------------------------------

RELIED_ON: dict[tuple[Any, str], tuple[str, ...]] = {
    **{(loss, "TappedLoss"): ("_make_vmap", name) for loss, (name, _) in _BATCHED_CRITICS.items()},
    (objective_utils, "paired_critics"): ("_vmap_func",),
    (SACLoss, "temperature"): ("_alpha",),
    (LossModule, "reduced"): ("_reduce_loss",),
    (REDQLoss, "bounded_temperature"): ("_safe_log_alpha",),
    (nn.Module, "has_module_hooks"): _HOOKS,
    (nn.Module, "ModuleWatch"): ("_modules", "_parameters", "_buffers"),
    (module_globals, "ModuleWatch"): tuple(f"_global{name}" for name in _HOOKS),
    (Tensor, "has_tensor_hooks"): ("_backward_hooks", "_post_accumulate_grad_hooks"),
    (SoftUpdate, "target_pairs"): ("_sources", "_targets"),
    (TensorDict, "unchecked_tensordict"): ("_new_unsafe",),
    (TensorDictReplayBuffer, "SeamReplayBuffer"): (
        *("_init", "_initialized", "_sample", "_rng", "_transform", "_collate_fn"),
        *("_replay_lock", "_write_lock", "_futures_lock", "_get_priority_vector"),
        *("_capture_prefetch_state", "_clear_prefetch_queue_locked"),
        *("_prefetch_cap", "_restore_prefetch_queue_locked"),
        *("_prefetch", "_pin_memory", "_service_shutdown", "_sample_dependency", "_dim_extend"),
    ),
    (Sampler, "SeamSampler"): ("_empty", "_rng"),
    (RoundRobinWriter, "track_generations"): ("_track_generations",),
    (RoundRobinWriter, "position"): ("_cursor", "_write_count"),
    (TensorDictRoundRobinWriter, "note_written"): ("_bump_generation", "_replicate_index"),
    (TensorStorage, "stored_rows"): ("_storage",),
    (Storage, "capacity_along_dim0"): ("_max_size_along_dim0",),
    (Storage, "replace_rows"): ("_empty", "_set_last_cursor"),
    (Storage, "revision"): ("_mutation_revision",),
    (PrioritizedSampler, "prioritized_state"): ("_sum_tree", "_max_priority", "_eps"),
    (PrioritizedSampler, "load_prioritized_state"): ("_min_tree", "_empty"),
    (SemLock, "is_held_here"): ("_semlock",),
    (LazyTensorStorage, "count_write"): (
        *("_len", "_bump_mutation_revision", "_mutation_revision_value"),
    ),
    (TensorDictRoundRobinWriter, "claim_slots"): ("_cursor", "_storage", "_write_count"),
    (TensorDictRoundRobinWriter, "write_rows"): ("_bump_generation", "_storage"),
    (Storage, "write_rows"): ("_attached_entities",),
    (TensorDict, "entries_of"): ("_tensordict",),
}
"""The private names in use, by the class or module that defines them and by the name using them."""
