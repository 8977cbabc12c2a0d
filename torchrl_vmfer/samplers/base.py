"""The base class of the samplers: TorchRL's sampler contract for any storage, and priorities."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import SeamSampler
from torchrl_vmfer.plain_state import load_file, save_file
from torchrl_vmfer.samplers.distributions import Distribution

__all__ = [
    "LARGEST_PRIORITY",
    "SIGNAL_ENTRIES",
    "BaseSampler",
    "SlotArray",
    "effective_sample_size",
    "flat_slots",
    "stored_slots",
]

LARGEST_PRIORITY = float(np.finfo(np.float32).max)
_PATIENCE = 100  # number of batches without any signal before a warning
_NEVER = -1
_FILE = "sampler.pt"  # of a saved state

SIGNAL_ENTRIES = {"factor": "vmf_factor", "gradient_norm": "vmf_gradient_norm"}
"""The entries that actor losses write, by the signal of the samplers that use them."""


def effective_sample_size(probabilities: Tensor) -> float:
    """The effective number of slots of a distribution, 1 / Σ P².

    It is n for the uniform distribution over n slots, and 1 if a single slot is always drawn.

    Args:
        probabilities: the probability of each slot. They sum to 1.

    Examples:
        >>> effective_sample_size(torch.tensor([0.25, 0.25, 0.25, 0.25]))
        4.0
        >>> effective_sample_size(torch.tensor([0.5, 0.5, 0.0, 0.0]))
        2.0
    """
    if probabilities.numel() == 0:
        return 0.0
    return 1 / float(probabilities.double().square().sum())


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """Flattens any index that TorchRL passes to a sampler into slot numbers.

    It may be an ``int``, a tensor ``[n]`` or ``[n, ndim]``, a tuple of ``ndim`` tensors, or
    ``None`` for no slots. Rows that a writer did not store have negative numbers.
    """
    if type(index) is Tensor and index.dtype is torch.int64 and index.ndim == 1 and index.is_cpu:
        return index.numpy()
    if index is None:
        return np.empty(0, np.int64)
    if isinstance(index, tuple):
        index = torch.stack([torch.as_tensor(i, device="cpu").reshape(-1) for i in index], -1)
    slots = torch.as_tensor(index, device="cpu").numpy()
    if slots.dtype.kind not in "iu" and slots.size:
        raise TypeError(f"A slot index must be an integer, got {slots.dtype}.")
    slots = slots.astype(np.int64, copy=False)
    if storage is not None and storage.ndim > 1 and slots.ndim > 1:
        stored = slots[..., 0] >= 0
        outside = ((slots < 0) | (slots >= storage.shape)).any(-1) & stored
        if outside.any():
            bad = slots[outside][0].tolist()
            raise IndexError(f"Index {bad} is outside a storage of shape {list(storage.shape)}.")
        flat = slots[..., 0].copy()
        flat[stored] = np.ravel_multi_index(tuple(slots[stored].T), storage.shape)
        slots = flat
    return slots.reshape(-1)


def stored_slots(slots: np.ndarray) -> np.ndarray:
    """Removes the slots that a writer did not store."""
    return slots[slots >= 0] if len(slots) and np.minimum.reduce(slots) < 0 else slots


class SlotArray:
    """A growing array with one number per slot.

    The capacity of a storage may be unknown, huge or subject to change. The array therefore only
    covers the slots in use and doubles in size when necessary.
    """

    def __init__(self, dtype: type[np.generic] = np.float32) -> None:
        # Not a tensor: torch.multiprocessing would share its memory with other processes, whose
        # samplers keep separate rank orders.
        self._memory = np.empty(0, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> np.ndarray:
        """The numbers of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Sets the number of live slots. New slots are set to ``fill``."""
        if length > len(self._memory):
            grown = np.empty(max(length, 2 * len(self._memory)), self._memory.dtype)
            grown[: self._length] = self.array
            self._memory = grown
        self._memory[self._length : length] = fill
        self._length = length

    def load(self, values: np.ndarray) -> None:
        """Replaces all numbers with a copy of ``values``."""
        self._memory = np.array(values, self._memory.dtype)
        self._length = len(values)


class BaseSampler(SeamSampler):
    """A TorchRL sampler whose probabilities are a function of one priority per slot.

    A subclass passes its distribution to the constructor and sets ``signal``, what
    ``update_priority`` expects: ``"factor"``, ``"td_error"``, ``"gradient_norm"``, or, with a
    custom training loop, anything else. ``default_priority`` is the priority of a new slot.

    TorchRL reports written slots through ``mark_update``. It does not report writes of another
    process, data that were already in the storage, or a storage that another buffer emptied or
    loaded. Every use therefore first compares the length that the sampler knows with that of the
    storage.

    A slot is unscored, and has the default priority, until its priority is updated for the first
    time after a write. The state is kept in NumPy arrays, which ``torch.compile`` cannot trace, so
    it inserts a graph break at each call of the sampler.

    Args:
        distribution: the distribution over the slots. ``None`` if a subclass has no priorities: it
            overrides everything that uses them.
    """

    signal: Any = None
    records_updates: ClassVar[bool] = True  # whether it records when each priority was updated
    settings: ClassVar[tuple[str, ...]] = ()  # arguments that a loaded state must agree with
    _shown: ClassVar[tuple[str, ...]] = ()  # arguments to show, if these are not all
    _first_maximum: ClassVar[float | None] = 0.0  # where the largest priority starts, if it counts
    _usual = (0.0, LARGEST_PRIORITY)  # an interval in which every priority is valid
    _rule = "a priority is a finite number of at least 0: pass |TD error|."

    def __init__(self, distribution: Distribution | None = None) -> None:
        self._distribution: Any = distribution
        self.reset()

    def reset(self) -> None:
        """Removes all priorities."""
        self._priorities = SlotArray()
        self._largest = self._first_maximum or 0.0
        self._num_updates = 0
        self._last_update = SlotArray(np.int32)  # the number of the update of each slot
        self._batches_without_signal: int | None = 0 if self.records_updates else None
        self._distribution.mark_all()

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self._shown or self.settings)
        return f"{type(self).__name__}({', '.join(shown)})"

    # --- Draws.

    # Not __len__: a sampler without slots would be falsy.
    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        return len(self._priorities)

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws flat slot numbers and returns them with metadata for the batch."""
        if self._batches_without_signal is not None:
            self._count_batch_without_signal()
        slots = self._distribution.draw(self._priorities.array, count, self.generator)
        return torch.from_numpy(slots), {}

    def _probabilities(self) -> np.ndarray:
        return self._distribution.probabilities(self._priorities.array)

    def _follow(self, storage: Storage) -> None:
        if len(storage) != self.num_slots:
            self._resize(len(storage))

    def _prepare(self, storage: Storage, batch_size: int) -> None:
        self._follow(storage)
        if self.num_slots == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 0:
            raise ValueError(f"batch_size must be an integer of at least 0, got {batch_size!r}.")

    @torch.compiler.disable
    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws ``batch_size`` indices with replacement."""
        self._prepare(storage, batch_size)
        index, info = self._draw(batch_size)
        if storage.ndim > 1:
            return torch.unravel_index(index, storage.shape), info
        return index, info

    @torch.compiler.disable
    def probabilities(self, storage: Storage | None = None) -> Tensor:
        """The exact probability of every live slot, in double precision.

        Args:
            storage: the storage to synchronize with first. Needed only if it was changed without
                notifying the sampler.
        """
        if storage is not None:
            self._follow(storage)
        return torch.from_numpy(self._probabilities())

    def effective_sample_size(self, storage: Storage | None = None) -> float:
        """The effective number of slots that batches are drawn from, 1 / Σ P².

        Args:
            storage: as in :meth:`probabilities`.

        Returns:
            NaN if the probabilities are not known.
        """
        try:
            return effective_sample_size(self.probabilities(storage))
        except NotImplementedError:
            return math.nan

    def priority_age(self) -> float:
        """The mean age of the priorities, in updates.

        The age of a priority is the number of ``update_priority`` calls since the one that set it.
        Unscored slots do not count. NaN if all slots are unscored.
        """
        last = self._last_update.array if self.records_updates else np.empty(0)
        last = last[last != _NEVER]
        return self._num_updates - float(last.mean(dtype=np.float64)) if len(last) else math.nan

    def unscored_fraction(self) -> float:
        """The fraction of live slots whose priority was never updated; NaN without slots."""
        if not (self.records_updates and self.num_slots):
            return math.nan
        return len(self._unscored_slots()) / self.num_slots

    def _unscored_slots(self) -> np.ndarray:
        return (self._last_update.array == _NEVER).nonzero()[0]

    def _count_batch_without_signal(self) -> None:
        assert self._batches_without_signal is not None
        self._batches_without_signal += 1
        if self._batches_without_signal == _PATIENCE:
            self._batches_without_signal = None
            values = f'metadata["{SIGNAL_ENTRIES.get(self.signal, self.signal)}"]'
            call = f'(batch["index"], {"td_error.abs()" if self.signal == "td_error" else values})'
            warnings.warn(
                f"{_PATIENCE} batches were drawn from a {type(self).__name__} that was never given "
                f"a {self.signal}: they were uniform. After each update, call "
                f"buffer.update_actor_priority{call}, or, for a sampler of the critics, "
                f"buffer.update_priority{call}.",
                stacklevel=2,
            )

    # --- Priorities.

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Sets newly written slots to the default priority. TorchRL calls it at every write."""
        slots = stored_slots(flat_slots(index, storage))
        if len(slots):
            length = int(np.maximum.reduce(slots)) + 1
            if length > self.num_slots:
                self._resize(length)
            self._write(slots, np.float32(self.default_priority))
            if self.records_updates:
                self._last_update.array[slots] = _NEVER

    @torch.compiler.disable
    def update_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Sets the priorities of some slots. If a slot occurs twice, the last priority wins.

        Args:
            index: the slots, as returned by ``sample``. Rows of -1 are skipped.
            priority: one number for all, or one for each index.
            storage: passed by the replay buffer.
        """
        if storage is not None:
            self._follow(storage)
        if self._store_compiled(index, priority):
            self._distribution.mark(index.numpy())
        else:
            slots, priorities = self._checked(index, priority, storage)
            if len(slots) == 0:
                return
            self._write(slots, self._scored(slots, priorities))
            if self.records_updates:
                self._last_update.array[slots] = self._num_updates + 1
        self._num_updates += 1
        self._batches_without_signal = None

    def _store_compiled(self, index: Any, priorities: Any) -> bool:
        """Stores priorities by a compiled function; ``False`` if they need the general path."""
        return False

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        """The priorities to store for slots that were given ``priorities``."""
        self._largest = max(self._largest, float(priorities.max()))
        return priorities

    def check_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Raises the errors of :meth:`update_priority`, which has the same arguments."""
        if storage is not None:
            self._follow(storage)
        self._checked(index, priority, storage)

    def _checked(
        self, index: Any, priority: float | Tensor, storage: Storage | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The stored slots among ``index``, and a valid priority for each of them."""
        slots = flat_slots(index, storage)
        given = torch.as_tensor(priority, device="cpu").detach()
        if given.is_complex():
            raise TypeError(f"A priority must be a real number, got {given.dtype}.")
        epsilon = torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0
        if given.dtype is not torch.float32:
            given = given.to(torch.float64)
        priorities = given.numpy().reshape(-1)
        if priorities.size not in (1, slots.size):
            raise ValueError(
                f"Got {priorities.size} values of shape {list(given.shape)} for {slots.size} "
                "indices. Pass one value for all, or one value for each index."
            )
        if priorities.size != slots.size:
            priorities = np.full(slots.size, priorities[0])
        if slots.size == 0:
            return slots, priorities
        # Viewed as unsigned, negative numbers are large: one check finds both kinds of bad slots.
        if np.maximum.reduce(slots.view(np.uint64)) >= self.num_slots:
            outside = (slots < -1) | (slots >= self.num_slots)
            if outside.any():
                bad, in_use = slots[outside][0], self.num_slots
                raise IndexError(f"Index {bad} is outside the {in_use} slots in use.")
            slots, priorities = slots[slots >= 0], priorities[slots >= 0]
        self._validate(slots, priorities, epsilon)
        return slots, priorities.astype(np.float32, copy=False)

    def _validate(self, slots: np.ndarray, priorities: np.ndarray, epsilon: float) -> None:
        low, high = self._usual
        if priorities.size == 0 or (
            low <= np.minimum.reduce(priorities)
            and np.maximum.reduce(priorities) <= high  # False if any is NaN
        ):
            return
        priorities = priorities.astype(np.float64)
        valid, rule = self._are_valid(priorities, epsilon)
        if not valid.all():
            first = int(np.argmin(valid))
            raise ValueError(f"Index {slots[first]} was given {priorities[first]}, but {rule}")

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        """Returns which priorities are valid up to a relative error ``epsilon``, and the rule."""
        return (priorities >= 0) & (priorities <= LARGEST_PRIORITY), self._rule

    def _write(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._priorities.array[slots] = priorities
        self._distribution.mark(slots)

    def _resize(self, length: int) -> None:
        """Sets the number of live slots."""
        before = self.num_slots
        self._priorities.resize(length, fill=self.default_priority)
        if self.records_updates:
            self._last_update.resize(length, fill=_NEVER)
        if length > before:
            self._distribution.mark(np.arange(before, length))
        else:
            self._distribution.mark_all()

    # --- Saving and loading.

    def _header(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in self.settings}
        return {"sampler": type(self).__name__, **settings}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        state = self._header()
        state["priorities"] = torch.from_numpy(self._priorities.array.copy())
        if self.records_updates:
            state["num_updates"] = self._num_updates
            state["last_update"] = torch.from_numpy(self._last_update.array.copy())
        if self._first_maximum is not None:
            state["max_priority"] = self._largest
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_header(state_dict)
        self._check_priorities(state_dict)
        self._priorities.load(state_dict["priorities"].double().cpu().numpy())
        if self.records_updates:
            self._num_updates = state_dict["num_updates"]
            self._last_update.load(state_dict["last_update"].cpu().numpy())
            self._batches_without_signal = None if self._num_updates else 0
        if self._first_maximum is not None:
            self._largest = float(state_dict["max_priority"])
        self._distribution.mark_all()

    def _check_header(self, state_dict: dict[str, Any]) -> None:
        """Raises an error if a state is not one of this class and these settings."""
        name = type(self).__name__
        saved = state_dict.get("sampler") if isinstance(state_dict, dict) else None
        if saved != name:
            raise ValueError(
                f"The state was not saved by {name} but by {saved or 'another class'}: load it "
                "into a sampler of the class that saved it."
            )
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"The state of {name} lacks {', '.join(sorted(missing))}.")
        for setting in self.settings:
            given, own = state_dict[setting], getattr(self, setting)
            if given != own:
                raise ValueError(
                    f"The state was saved with {setting}={given!r}, but this sampler has "
                    f"{setting}={own!r}: construct it with the {setting} of the state."
                )

    def _check_priorities(self, state_dict: dict[str, Any]) -> None:
        """Raises an error if a number of a state cannot be a priority."""
        given = state_dict["priorities"]
        if not (isinstance(given, Tensor) and given.ndim == 1 and given.is_floating_point()):
            raise ValueError("The priorities of the state are not a vector of numbers.")
        values = given.double().cpu().numpy()
        self._validate(np.arange(len(values)), values, torch.finfo(torch.float32).eps)
        for name in {"max_priority", "beta"} & state_dict.keys():
            value = state_dict[name]
            if not (isinstance(value, (int, float)) and 0 <= value <= LARGEST_PRIORITY):
                raise ValueError(f"{name} of the state is {value!r}, not a number of at least 0.")

    def dumps(self, path: str | Path) -> None:
        """Saves the state in the folder ``path``. A failed save leaves an older one intact."""
        save_file(self.state_dict(), Path(path) / _FILE)

    def loads(self, path: str | Path) -> None:
        """Loads a state saved by :meth:`dumps`, or resets the sampler if there is none."""
        file = Path(path) / _FILE
        if file.exists():
            self.load_state_dict(load_file(file))
        else:
            self.reset()
