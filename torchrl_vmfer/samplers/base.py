"""The base class of the samplers: TorchRL's sampler contract for any storage, and priorities."""

from __future__ import annotations

import math
import warnings
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import SeamSampler
from torchrl_vmfer.plain_state import check_saved, load_file, save_file
from torchrl_vmfer.samplers.distributions import (
    Distribution,
    RankDistribution,
    SlotArray,
    flat_slots,
)
from torchrl_vmfer.samplers.ranks import compiled_functions

_PATIENCE = 100  # number of batches without any signal before a warning
NEVER = -1
_FILE = "sampler.pt"  # the file of a saved state

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


class BaseSampler(SeamSampler):
    """A TorchRL sampler whose probabilities are a function of one priority per slot.

    A subclass passes its distribution to the constructor. Its ``signal`` names the values that
    ``update_priority`` expects: ``"factor"``, ``"td_error"``, ``"gradient_norm"``, or, with a
    custom training loop, anything else. Its ``default_priority`` is the priority of a new slot.

    TorchRL reports written slots through ``mark_update``. It does not report writes of another
    process, data that were already in the storage, or a storage that another buffer emptied or
    loaded. Every use therefore first compares the length that the sampler knows with that of the
    storage.

    A slot is unscored, and has the default priority, until its priority is updated for the first
    time after a write. The state is kept in NumPy arrays, where ``torch.compile`` breaks its graph.
    """

    signal: Any = None
    smoothing = 0.0  # the weight of the old priority in an update
    floor = 0.0  # the smallest priority that is stored
    records_updates: ClassVar[bool] = True  # whether to record when each priority was updated
    settings: ClassVar[tuple[str, ...]] = ()  # fixed arguments; a loaded state must agree with them
    _numbers: ClassVar[tuple[str, ...]] = ("max_priority",)  # attributes to save and load
    _first_maximum: ClassVar[float] = 0.0
    _range = (0.0, float(np.finfo(np.float32).max))  # the range of valid priorities
    _distribution: Any = None
    _rule = "a priority is a finite number of at least 0: pass |TD error|."

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self.reset()

    def reset(self) -> None:
        """Removes all priorities."""
        self._priorities = SlotArray()
        self.max_priority = self._first_maximum  # the largest so far
        self._num_updates = 0
        self._last_update = SlotArray(np.int32)  # the number of the update of each slot
        self._patience = _PATIENCE if self.records_updates else 0
        self._distribution.mark_all()

    def __repr__(self) -> str:
        names = [name for name in signature(type(self).__init__).parameters if hasattr(self, name)]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({shown})"

    # --- Draws.

    # Not __len__: a sampler without slots would be falsy.
    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        return self._priorities.length

    def _draw(self, storage: Storage, count: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws indices, or flat slot numbers, and returns them with metadata for the batch."""
        self._patience -= 1
        if self._patience == 0:
            self._warn_without_signal()
        slots = self._distribution.draw(self._priorities.array, count, self.generator)
        return torch.from_numpy(slots), {}

    def _probabilities(self) -> np.ndarray:
        return self._distribution.probabilities(self._priorities.array)

    def follow(self, storage: Storage | None) -> None:
        """Updates the sampler to the length of the storage, if the storage is given."""
        if storage is not None and len(storage) != self.num_slots:
            self._resize(len(storage))

    @torch.compiler.disable
    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws ``batch_size`` indices with replacement."""
        self.follow(storage)
        if self.num_slots == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 0:
            raise ValueError(f"batch_size must be an integer of at least 0, got {batch_size!r}.")
        index, info = self._draw(storage, batch_size)
        if storage.ndim > 1 and isinstance(index, Tensor):
            index = torch.unravel_index(index, storage.shape)
        return index, info

    @torch.compiler.disable
    def probabilities(self, storage: Storage | None = None) -> Tensor:
        """The exact probability of every live slot, in double precision.

        The ``storage`` is needed only if it was changed without notifying the sampler.
        """
        self.follow(storage)
        return torch.from_numpy(self._probabilities())

    def effective_sample_size(self, storage: Storage | None = None) -> float:
        """The effective number of slots, 1 / Σ P²; NaN if the probabilities are not known."""
        self.follow(storage)
        if isinstance(self._distribution, RankDistribution):
            return self._distribution.effective_sample_size(self._priorities.array)
        try:
            return effective_sample_size(self.probabilities())
        except NotImplementedError:
            return math.nan

    def priority_age(self) -> float:
        """The mean number of updates since priorities were set; NaN if all slots are unscored."""
        last = self._last_update.array
        last = last[last != NEVER]
        return self._num_updates - float(last.mean(dtype=np.float64)) if len(last) else math.nan

    def unscored_fraction(self) -> float:
        """The fraction of live slots whose priority was never updated; NaN without slots."""
        last = self._last_update.array
        return float((last == NEVER).mean()) if len(last) else math.nan

    def _warn_without_signal(self) -> None:
        values = f'metadata["{SIGNAL_ENTRIES.get(self.signal, self.signal)}"]'
        call = f'(batch["index"], {"td_error.abs()" if self.signal == "td_error" else values})'
        warnings.warn(
            f"{_PATIENCE} batches were drawn from a {type(self).__name__} that was never given a "
            f"{self.signal}: they were uniform. After each update, call "
            f"buffer.update_actor_priority{call}, or, for a sampler of the critics, "
            f"buffer.update_priority{call}.",
            stacklevel=2,
        )

    # --- Priorities.

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Records newly written slots. TorchRL calls it at every write."""
        slots = flat_slots(index, storage)
        # A writer marks rows that it did not store with -1. Most writes are of a single row.
        if len(slots) != 1 or slots[0] < 0:
            slots = slots[slots >= 0]
        if len(slots):
            self._mark(slots)

    def _mark(self, slots: np.ndarray) -> None:
        """Sets written slots to the default priority."""
        last = slots.item() if len(slots) == 1 else int(slots.max())
        self._resize(max(self.num_slots, last + 1))
        self._write(slots, np.float32(self.default_priority), NEVER)

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
        self.follow(storage)
        slots = flat_slots(index, storage)
        given = torch.as_tensor(priority, device="cpu").detach()
        if self._stores(slots, given):
            self._distribution.mark(slots)
            return
        slots, priorities = self._checked(slots, given)
        if len(slots):
            self._num_updates += 1
            self._patience = 0
            self._write(slots, self._scored(slots, priorities), self._num_updates)

    def _stores(self, slots: np.ndarray, given: Tensor) -> bool:
        """Stores priorities with compiled code, unless it finds a fault or there is a special case.

        For small batches, the checks take most of the time in NumPy.
        """
        functions = compiled_functions()
        is_plain = (
            functions is not None
            and not self.smoothing
            and given.dtype is torch.float32
            and given.shape == slots.shape
            and given.is_contiguous()
            and slots.flags.c_contiguous
            and len(slots)
        )
        if not is_plain:
            return False
        last = self._last_update.array if self.records_updates else None
        largest = functions.store(
            *(slots, given.numpy(), *self._range, self.floor),
            *(self._priorities.array, last, self._num_updates + 1),
        )
        if largest is None:
            return False
        self._num_updates += 1
        self._patience = 0
        self.max_priority = max(self.max_priority, largest)
        return True

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        """The priorities to store for slots that were given ``priorities``."""
        found = np.minimum(priorities, np.float32(self._range[1]))  # a rounding error above it
        if self.smoothing:
            old = self._priorities.array[slots]
            found = np.float32(self.smoothing) * old + np.float32(1 - self.smoothing) * found
        self.max_priority = max(self.max_priority, float(found.max()))
        return np.maximum(found, np.float32(self.floor))

    def check_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Raises the errors of :meth:`update_priority`."""
        self.follow(storage)
        given = torch.as_tensor(priority, device="cpu").detach()
        self._checked(flat_slots(index, storage), given)

    def _checked(self, slots: np.ndarray, given: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Raises an error for invalid priorities. Returns stored slots and priorities."""
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
        outside = (slots < -1) | (slots >= self.num_slots)
        if outside.any():
            bad, in_use = slots[outside][0], self.num_slots
            raise IndexError(f"Index {bad} is outside the {in_use} slots in use.")
        if (slots < 0).any():
            slots, priorities = slots[slots >= 0], priorities[slots >= 0]
        self._validate(slots, priorities, epsilon)
        return slots, priorities.astype(np.float32, copy=False)

    def _validate(self, slots: np.ndarray, priorities: np.ndarray, epsilon: float) -> None:
        """Raises an error if a priority is out of range by more than its rounding error."""
        low, high = self._range
        priorities = priorities.astype(np.float64)
        valid = (priorities >= low * (1 - 2 * epsilon)) & (priorities <= high * (1 + 2 * epsilon))
        if not valid.all():
            first = int(np.argmin(valid))
            raise ValueError(
                f"Index {slots[first]} was given {priorities[first]}, but {self._rule}"
            )

    def _write(self, slots: np.ndarray, priorities: np.ndarray | np.float32, update: int) -> None:
        self._priorities.array[slots] = priorities
        if self.records_updates:
            self._last_update.array[slots] = update
        self._distribution.mark(slots)

    def _resize(self, length: int) -> None:
        """Sets the number of live slots."""
        before = self.num_slots
        if length == before:
            return
        self._priorities.resize(length, fill=self.default_priority)
        if self.records_updates:
            self._last_update.resize(length, fill=NEVER)
        if length > before:
            self._distribution.mark(np.arange(before, length))
        else:
            self._distribution.mark_all()

    # --- Saving and loading.

    def _header(self) -> dict[str, Any]:
        saved = {name: getattr(self, name) for name in (*self.settings, *self._numbers)}
        return {"sampler": type(self).__name__, **saved}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        state = self._header()
        state["priorities"] = torch.from_numpy(self._priorities.array.copy())
        if self.records_updates:
            state["num_updates"] = self._num_updates
            state["last_update"] = torch.from_numpy(self._last_update.array.copy())
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_header(state_dict)
        given = state_dict["priorities"]
        if not (isinstance(given, Tensor) and given.ndim == 1 and given.is_floating_point()):
            raise ValueError("The priorities of the state are not a vector of numbers.")
        priorities = given.double().cpu().numpy()
        self._validate(np.arange(len(priorities)), priorities, torch.finfo(torch.float32).eps)
        self._load_numbers(state_dict)
        self._priorities.load(priorities)
        if self.records_updates:
            self._num_updates = state_dict["num_updates"]
            self._last_update.load(state_dict["last_update"].cpu().numpy())
            self._patience = 0 if self._num_updates else _PATIENCE
        self._distribution.mark_all()

    def _check_header(self, state_dict: dict[str, Any]) -> None:
        check_saved(state_dict, self.state_dict(), self.settings, self._numbers)

    def _load_numbers(self, state_dict: dict[str, Any]) -> None:
        for name in self._numbers:
            setattr(self, name, state_dict[name])

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
