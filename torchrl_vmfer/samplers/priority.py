"""Base class of the samplers: one priority per slot, and TorchRL's sampler contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import SeamSampler
from torchrl_vmfer.plain_state import load_file, save_file
from torchrl_vmfer.samplers.rank_distribution import RankDistribution

__all__ = ["PrioritySampler", "SlotPriorities", "flat_slots", "uniform"]

_FILE = "priorities.pt"


def uniform(count: int, generator: torch.Generator | None) -> np.ndarray:
    """Draws numbers in [0, 1) in double precision."""
    # torch.randint favors low numbers by up to n/2³², and single precision would round small
    # factors to multiples of 2⁻²⁴.
    return torch.rand(count, dtype=torch.float64, generator=generator, device="cpu").numpy()


def flat_slots(index: Any, storage: Storage | None) -> np.ndarray:
    """Flattens any index that TorchRL passes to a sampler into slot numbers.

    Args:
        index: an ``int``, a tensor ``[n]``, a tensor ``[n, ndim]`` or a tuple of ``ndim``
            tensors. ``None`` means no slots.
        storage: required to flatten the indices of a storage with more than one dimension.

    Returns:
        an integer array. Rows that a writer did not store have negative numbers.
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


class SlotPriorities:
    """A growing array with one ``float32`` priority per slot.

    The capacity of a storage may be unknown, huge or subject to change. The array therefore only
    covers the slots in use and doubles in size when necessary.

    Examples:
        >>> priorities = SlotPriorities()
        >>> priorities.resize(3, fill=1.0)
        >>> priorities.array[1] = 2.0
        >>> priorities.array
        array([1., 2., 1.], dtype=float32)
    """

    def __init__(self) -> None:
        # Not a tensor: torch.multiprocessing would share its memory with other processes, whose
        # samplers keep separate rank orders.
        self._memory = np.empty(0, np.float32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> np.ndarray:
        """The priorities of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self._length]

    def resize(self, length: int, fill: float) -> None:
        """Sets the number of live slots. New slots are set to ``fill``."""
        if length > len(self._memory):
            grown = np.empty(max(length, 2 * len(self._memory)), np.float32)
            grown[: self._length] = self.array
            self._memory = grown
        self._memory[self._length : length] = fill
        self._length = length

    def load(self, priorities: np.ndarray) -> None:
        """Replaces all priorities with a copy of ``priorities``."""
        self._memory = np.array(priorities, np.float32)
        self._length = len(priorities)


class PrioritySampler(SeamSampler):
    """A TorchRL sampler whose probabilities are a function of one priority per slot.

    TorchRL reports written slots through ``mark_update``. It does not report writes of another
    process, data that were already in the storage, or a storage that another buffer emptied or
    loaded. Every use therefore first compares the number of priorities with the length of the
    storage.

    The priorities are NumPy arrays, not tensors. ``torch.compile`` cannot trace them, so it inserts
    a graph break at each call of the sampler.

    Subclasses implement ``_draw``, ``_probabilities``, ``_are_valid``, ``_update`` and
    ``default_priority``, and set ``_usual``; those whose probabilities depend on ranks also set
    ``_ranks``.
    """

    _ranks: RankDistribution | None = None
    _usual: tuple[float, float]  # an interval in which every priority is valid

    def __init__(self) -> None:
        self._priorities = SlotPriorities()

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws flat slot numbers and returns them with metadata for the batch."""
        raise NotImplementedError

    def _probabilities(self) -> np.ndarray:
        raise NotImplementedError

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        """Returns which priorities are valid up to a relative error ``epsilon``, and the rule."""
        raise NotImplementedError

    def _update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Stores valid priorities with ``_write``."""
        raise NotImplementedError

    @torch.compiler.disable
    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws ``batch_size`` indices with replacement."""
        self._follow(storage)
        if len(self._priorities) == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if batch_size < 0:
            raise ValueError(f"batch_size must be at least 0, got {batch_size}.")
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

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Sets newly written slots to the default priority. TorchRL calls it at every write."""
        slots = _stored(flat_slots(index, storage))
        if len(slots):
            length = int(slots.max()) + 1
            if length > len(self._priorities):
                self._resize(length)
            self._write(slots, np.float32(self.default_priority))

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
            return
        # Viewed as unsigned, negative numbers are large: one check finds both kinds of bad slots.
        if np.maximum.reduce(slots.view(np.uint64)) >= len(self._priorities):
            outside = (slots < -1) | (slots >= len(self._priorities))
            if outside.any():
                in_use = len(self._priorities)
                raise IndexError(f"Index {slots[outside][0]} is outside the {in_use} slots in use.")
            slots, priorities = slots[slots >= 0], priorities[slots >= 0]
        self._validate(slots, priorities, epsilon)
        self._update(slots, priorities.astype(np.float32, copy=False))

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

    def _write(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._priorities.array[slots] = priorities
        if self._ranks is not None:
            self._ranks.mark(slots)

    def _follow(self, storage: Storage) -> None:
        if len(storage) != len(self._priorities):
            self._resize(len(storage))

    def _resize(self, length: int) -> None:
        before = len(self._priorities)
        self._priorities.resize(length, fill=self.default_priority)
        if self._ranks is not None and length > before:
            self._ranks.mark(np.arange(before, length))

    def reset(self) -> None:
        """Removes all priorities."""
        self._priorities = SlotPriorities()
        if self._ranks is not None:
            self._ranks.mark_all()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return {
            "sampler": type(self).__name__,
            "priorities": torch.from_numpy(self._priorities.array.copy()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
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
        self._check_state(state_dict)
        priorities = state_dict["priorities"]
        if not (
            isinstance(priorities, Tensor)
            and priorities.ndim == 1
            and priorities.is_floating_point()
        ):
            raise ValueError(f"The priorities of the state of {name} are not a vector of numbers.")
        values = priorities.double().cpu().numpy()
        self._validate(np.arange(len(values)), values, torch.finfo(torch.float32).eps)
        self._priorities.load(values)
        if self._ranks is not None:
            self._ranks.mark_all()

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Raises an error if the additional entries of a state are incompatible."""

    def dumps(self, path: str | Path) -> None:
        """Saves the state in the folder ``path``. A failed save leaves an older one intact."""
        save_file(self.state_dict(), Path(path) / _FILE)

    def loads(self, path: str | Path) -> None:
        """Loads a state saved by :meth:`dumps`, or removes all priorities if there is none."""
        file = Path(path) / _FILE
        if file.exists():
            self.load_state_dict(load_file(file))
        else:
            self.reset()


def _stored(slots: np.ndarray) -> np.ndarray:
    """Removes the slots that a writer did not store."""
    return slots[slots >= 0] if len(slots) and slots.min() < 0 else slots
