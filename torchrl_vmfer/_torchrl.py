"""The seam to TorchRL: every private name of torch, TorchRL and tensordict that the package uses.

The rest of the package reaches TorchRL's internals through the functions and base classes here,
which have public names. :data:`RELIED_ON` lists the private ones; ``tests/test_torchrl_seam.py``
checks that each exists and that no other module uses any, so that an upgrade of TorchRL breaks in
one place with a clear message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.context import get_spawning_popen
from multiprocessing.synchronize import SemLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer
from torchrl.envs import EnvBase, GymWrapper
from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss
from torchrl.objectives import utils as objective_utils
from torchrl.objectives.common import LossModule

# --- Losses ---------------------------------------------------------------------------------

Critics = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]

if TYPE_CHECKING:
    from torchrl.objectives.common import LossModule as LossMixin
else:
    # LossModule's metaclass would give a mixin a `forward` that hides its siblings'.
    LossMixin = object

# How a loss calls its critics: the name of the batched callable, and whether all critics read
# the same inputs ``[*batch]``, rather than the i-th critic the i-th of ``[N, *batch]``.
_BATCHED_CRITICS: dict[type[LossModule], tuple[str, bool]] = {
    TD3Loss: ("_vmap_qvalue_network00", False),
    SACLoss: ("_vmap_qnetworkN0", True),
}


def paired_critics(loss: LossModule) -> Critics:
    """The critics of a loss as one callable, of which the i-th reads the i-th inputs."""
    return objective_utils._vmap_func(
        loss.qvalue_network,
        randomness=loss.vmap_randomness,
        pseudo_vmap=getattr(loss, "deactivate_vmap", False),
    )


class TappedLoss(LossMixin):
    """A TorchRL loss that calls :meth:`critics` wherever it would call its batched critics.

    Attributes:
        stock_critics: the batched critics of the TorchRL loss.
        paired_critics: critics of which the i-th reads the i-th inputs.
        has_shared_inputs: whether all of ``stock_critics`` read the same inputs.
    """

    stock_critics: Critics
    paired_critics: Critics
    has_shared_inputs: bool

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Takes the place of ``stock_critics``."""
        raise NotImplementedError

    def _make_vmap(self) -> None:
        # TorchRL calls it at construction and whenever the randomness of vmap changes.
        super()._make_vmap()
        name, self.has_shared_inputs = next(
            found for parent, found in _BATCHED_CRITICS.items() if isinstance(self, parent)
        )
        self.stock_critics = getattr(self, name)
        self.paired_critics = paired_critics(self) if self.has_shared_inputs else self.stock_critics
        setattr(self, name, self.critics)


def temperature(loss: SACLoss) -> Tensor:
    """The α of a SAC loss, within its bounds and without gradient."""
    return loss._alpha


# --- Networks and gradients -----------------------------------------------------------------

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_module_hooks(module: nn.Module) -> bool:
    """Whether calling the module also calls functions of the user."""
    return "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether a backward pass through the tensor also calls functions of the user."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


class ModuleWatch:
    """Tells, within microseconds, of hooks on some modules and of parts that were replaced."""

    def __init__(self, *modules: nn.Module) -> None:
        parts = [part for module in modules for part in module.modules()]
        # PyTorch changes these dictionaries in place.
        self._attributes = [vars(part) for part in parts]
        self._hooks = [getattr(part, name) for part in parts for name in _HOOKS]
        self._hooks += [getattr(module_globals, f"_global{name}") for name in _HOOKS]
        self._children = [
            (part._modules, tuple(part._modules.values())) for part in parts if part._modules
        ]

    def has_hooks(self) -> bool:
        """Whether any of the modules has a hook, or all modules of the process have one.

        A ``forward`` that was assigned to a module counts as a hook.
        """
        return any(self._hooks) or any("forward" in names for names in self._attributes)

    def is_unchanged(self) -> bool:
        """Whether the modules still consist of the same parts."""
        return all(tuple(children.values()) == seen for children, seen in self._children)


# --- Optimizers -----------------------------------------------------------------------------

fused_adam_ = torch._fused_adam_
lerp_all_ = torch._foreach_lerp_


def target_pairs(updater: SoftUpdate) -> list[tuple[Tensor, Tensor]]:
    """Each target parameter that an updater moves, with the parameter that it follows."""
    sources, targets = updater._sources.flatten_keys(), updater._targets.flatten_keys()
    return [(targets.get(f"target_{name}"), source) for name, source in sources.items()]


# --- Collectors -----------------------------------------------------------------------------


class OpenCollector(Collector):
    """A collector whose ``rollout`` a subclass writes, and whose batches are not processed."""

    @property
    def carrier(self) -> TensorDictBase:
        """What the environment returned last."""
        return self._carrier

    @property
    def acting_policy(self) -> Any:
        """The policy as it is called, on its device."""
        return self._wrapped_policy

    def draws_random_action(self) -> bool:
        """Whether the next frame is one of the first random ones."""
        return self._should_use_random_frames()

    def _postproc(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict


def gymnasium_env(env: EnvBase) -> Any:
    """The Gymnasium environment behind TorchRL's wrapper."""
    return env._env


# --- Replay buffers and samplers ------------------------------------------------------------


class SeamSampler(Sampler):
    """TorchRL's sampler with public names for its private hooks."""

    @property
    def generator(self) -> torch.Generator | None:
        """The random generator; ``None`` is PyTorch's global one. The buffer sets it."""
        return self._rng

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self._rng = generator

    def reset(self) -> None:
        """Return to the state of an empty storage."""
        raise NotImplementedError

    def _empty(self) -> None:
        self.reset()


def set_generator(sampler: Sampler, generator: torch.Generator | None) -> None:
    """Give a sampler its random generator."""
    sampler._rng = generator


def empty_sampler(sampler: Sampler) -> None:
    """Return any sampler to the state of an empty storage."""
    sampler._empty()


class SeamReplayBuffer(TensorDictReplayBuffer):
    """TorchRL's buffer with public names for its private hooks.

    Subclasses override ``make_parts``, ``check_parts`` and ``draw_batch``.
    """

    _initialized: bool

    def make_parts(self) -> None:
        """Make what the buffer needs beyond TorchRL's parts, before those are made."""

    def check_parts(self) -> None:
        """Raise an error if the parts do not fit together."""

    def draw_batch(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        """Draw a batch for ``sample()``, which may be called in a prefetching thread."""
        return super()._sample(batch_size)

    def ensure_built(self) -> None:
        """Make the parts now, if the buffer was constructed with ``delayed_init=True``."""
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

    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        return self.draw_batch(batch_size)

    @property
    def is_built(self) -> bool:
        """Whether the parts have been made."""
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

    def drop_transform(self) -> None:
        """Remove the transform: even an empty one copies all data that are written."""
        self._init()
        self._transform = None

    @property
    def thread_lock(self) -> AbstractContextManager[Any]:
        """The lock between the threads of this process; it may be taken twice."""
        return self._replay_lock

    @property
    def process_lock(self) -> Any:
        """The lock between the processes that share the buffer, if any do."""
        return self._write_lock

    @process_lock.setter
    def process_lock(self, lock: AbstractContextManager[Any]) -> None:
        self._write_lock = lock

    def collate(self, data: Any) -> TensorDictBase:
        """Turn what the storage returned into a batch."""
        return self._collate_fn(data)

    def priorities_in(self, batch: TensorDictBase) -> Tensor:
        """The entry ``priority_key`` as one number per transition."""
        return self._get_priority_vector(batch)

    @contextmanager
    def holding_prefetched(self) -> Iterator[list[tuple[TensorDictBase, dict[str, Any]]]]:
        """Wait for prefetched batches and hold the thread lock. Yields copies of the batches."""
        with self._capture_prefetch_state() as state:
            yield list(state["queue"])

    @property
    def prefetch_lock(self) -> AbstractContextManager[Any]:
        """The lock of the queue of prefetched batches; take it before ``thread_lock``."""
        return self._futures_lock

    def check_prefetched(self, batches: list[Any]) -> None:
        """Raise an error if so many prefetched batches cannot be taken over."""
        if len(batches) > self._prefetch_cap:
            raise ValueError(
                f"The state holds {len(batches)} prefetched batches, but the buffer has "
                f"prefetch={self._prefetch_cap}: construct it with the prefetch= of the saved one."
            )

    def replace_prefetched(self, batches: list[tuple[TensorDictBase, dict[str, Any]]]) -> None:
        """Replace the queue of prefetched batches."""
        self._clear_prefetch_queue_locked()
        state = {"version": 1, "capacity": self._prefetch_cap, "queue": batches}
        self._restore_prefetch_queue_locked(state, clone_queue=False)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if get_spawning_popen() is not None:
            # TorchRL would hand the process shared memory that is freed before it starts.
            state["_rng"] = None
        return state


def forward_to_ray_actor(*names: str) -> None:
    """Give TorchRL's handle of a buffer in a Ray actor further methods of the buffer."""

    def forwarded(name: str) -> Callable[..., Any]:
        def call(buffer: RayReplayBuffer, *args: Any, **kwargs: Any) -> Any:
            return getattr(buffer._client, name)(*args, **kwargs)

        call.__name__ = name
        call.__doc__ = f"``{name}`` of the buffer in the Ray actor."
        return call

    for name in names:
        setattr(RayReplayBuffer, name, forwarded(name))


def track_generations(writer: Writer) -> None:
    """Make a round-robin writer count how often each slot is written, from now on."""
    if isinstance(writer, RoundRobinWriter) and not writer.tracks_generations:
        writer._track_generations = True


def position(writer: RoundRobinWriter) -> tuple[int, int]:
    """How many rows a round-robin writer has written, and the slot that comes next."""
    return writer._write_count, writer._cursor


def note_written(writer: Writer, slots: Tensor) -> Tensor:
    """Count slots that another process wrote; returns the index that TorchRL marks for them."""
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
    """The memory of a storage that keeps all rows in one TensorDict, and ``None`` for others."""
    rows = storage._storage if isinstance(storage, TensorStorage) else None
    return rows if isinstance(rows, TensorDictBase) else None


def capacity_along_dim0(storage: Storage) -> int:
    """How many rows fit along the first dimension."""
    return storage._max_size_along_dim0()


def replace_rows(storage: Storage, rows: Any, count: int, writer: Writer) -> None:
    """Replace all that a storage holds by ``count`` rows along the first dimension."""
    storage._empty()
    if count:
        storage.set(torch.arange(count), rows)
    if isinstance(writer, RoundRobinWriter):
        # Samplers of slices take it for the newest row.
        storage._set_last_cursor(writer._cursor - 1 if writer._cursor else count - 1)


def revision(storage: Storage) -> int:
    """A counter of all changes of the stored data, also of those that no sampler is told of."""
    return int(storage._mutation_revision)


def revisions_of_write(storage: Storage, count: int) -> int:
    """By how much a single write of ``count`` rows moves :func:`revision`."""
    return count if isinstance(storage, ListStorage) else 1


def prioritized_state(sampler: PrioritizedSampler, length: int) -> dict[str, Any]:
    """The state of TorchRL's sampler as plain tensors and numbers.

    Its own state holds C++ trees, which only pickle can save. The inner nodes of a tree follow
    from its leaves.
    """
    leaves = torch.empty(0)
    if length:
        leaves = torch.as_tensor(sampler._sum_tree[torch.arange(length)]).cpu()
    return {
        "sampler": type(sampler).__name__,
        "alpha": float(sampler.alpha),
        "beta": float(sampler.beta),
        "epsilon": sampler._eps,
        "max_priority": list(sampler._max_priority),
        "leaves": leaves,
    }


def load_prioritized_state(sampler: PrioritizedSampler, state: dict[str, Any]) -> None:
    """Load what :func:`prioritized_state` returned."""
    if state.get("sampler") != type(sampler).__name__:
        raise ValueError(
            f"This is not a state of {type(sampler).__name__} but of {state.get('sampler')}: load "
            "it into a sampler of the class that saved it."
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


def count_write(storage: LazyTensorStorage, count: int) -> None:
    """Count rows that were added to a storage, as one change of its data."""
    storage._len = min(len(storage) + count, storage.max_size)
    storage._bump_mutation_revision()


def claim_slots(writer: TensorDictRoundRobinWriter, count: int) -> Tensor:
    """The slots that rows are to be written to; the writer's cursor moves behind them."""
    cursor: int = writer._cursor
    size = writer._storage.max_size
    writer._cursor = (cursor + count) % size
    writer._write_count += count
    return torch.from_numpy(np.arange(cursor, cursor + count) % size)


def write_rows(writer: TensorDictRoundRobinWriter, slots: Tensor, data: TensorDictBase) -> None:
    """Writes rows to the slots of the writer's storage and tells the buffers attached to it."""
    writer._storage.set(slots, data)
    if writer.tracks_generations:
        writer._bump_generation(slots, data)
    writer._mark_update_entities(slots)


# --------------------------------------------------------------------------------------------

RELIED_ON: dict[tuple[Any, str], tuple[str, ...]] = {
    (TD3Loss, "TappedLoss"): ("_make_vmap", "_vmap_qvalue_network00"),
    (SACLoss, "TappedLoss"): ("_make_vmap", "_vmap_qnetworkN0"),
    (objective_utils, "paired_critics"): ("_vmap_func",),
    (SACLoss, "temperature"): ("_alpha",),
    (nn.Module, "has_module_hooks"): _HOOKS,
    (nn.Module, "ModuleWatch"): ("_modules",),
    (module_globals, "ModuleWatch"): tuple(f"_global{name}" for name in _HOOKS),
    (Tensor, "has_tensor_hooks"): ("_backward_hooks", "_post_accumulate_grad_hooks"),
    (torch, "fused_adam_"): ("_fused_adam_",),
    (torch, "lerp_all_"): ("_foreach_lerp_",),
    (SoftUpdate, "target_pairs"): ("_sources", "_targets"),
    (Collector, "OpenCollector"): (
        "_carrier",
        "_wrapped_policy",
        "_should_use_random_frames",
        "_postproc",
    ),
    (GymWrapper, "gymnasium_env"): ("_env",),
    (TensorDict, "unchecked_tensordict"): ("_new_unsafe",),
    (TensorDictReplayBuffer, "SeamReplayBuffer"): (
        *("_init", "_initialized", "_sample", "_rng", "_transform", "_collate_fn"),
        *("_replay_lock", "_write_lock", "_futures_lock", "_get_priority_vector"),
        *("_capture_prefetch_state", "_clear_prefetch_queue_locked"),
        *("_prefetch_cap", "_restore_prefetch_queue_locked"),
    ),
    (Sampler, "SeamSampler"): ("_empty", "_rng"),
    (RayReplayBuffer, "forward_to_ray_actor"): ("_client",),
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
    (LazyTensorStorage, "count_write"): ("_len", "_bump_mutation_revision"),
    (TensorDictRoundRobinWriter, "claim_slots"): ("_cursor", "_storage", "_write_count"),
    (TensorDictRoundRobinWriter, "write_rows"): ("_bump_generation", "_mark_update_entities"),
}
"""The private names relied on, by the class or module that has them and by their user here."""
