"""Base class of the samplers with one priority per slot."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer.samplers.base import SlotSampler
from torchrl_vmfer.samplers.slots import SlotArray, flat_slots, stored_slots

__all__ = ["Distribution", "PrioritySampler"]


class Distribution(Protocol):
    """A distribution over slots that follows changes of their priorities."""

    def mark(self, slots: np.ndarray) -> None:
        """Marks the priorities of some slots as changed. The next draw reads them."""

    def mark_all(self) -> None:
        """Marks all priorities as possibly changed."""

    def draw(
        self, priorities: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draws slots with replacement."""

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """P of every slot."""


class PrioritySampler(SlotSampler):
    """A TorchRL sampler whose probabilities are a function of one priority per slot.

    Subclasses implement ``_are_valid``, ``_update`` and ``default_priority``, and set ``_usual``.
    They set ``_distribution``, or implement ``_draw`` and ``_probabilities``.
    """

    _file: ClassVar[str] = "priorities.pt"
    _distribution: Distribution | None = None
    _usual: tuple[float, float]  # an interval in which every priority is valid

    def __init__(self) -> None:
        self._priorities = SlotArray()

    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        return len(self._priorities)

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.from_numpy(self._draw_slots(count)), {}

    def _draw_slots(self, count: int) -> np.ndarray:
        assert self._distribution is not None
        return self._distribution.draw(self._priorities.array, count, self.generator)

    def _probabilities(self) -> np.ndarray:
        assert self._distribution is not None
        return self._distribution.probabilities(self._priorities.array)

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        """Returns which priorities are valid up to a relative error ``epsilon``, and the rule."""
        raise NotImplementedError

    def _update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Stores valid priorities with ``_write``."""
        raise NotImplementedError

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Sets newly written slots to the default priority. TorchRL calls it at every write."""
        slots = stored_slots(flat_slots(index, storage))
        if len(slots):
            length = int(np.maximum.reduce(slots)) + 1
            if length > len(self._priorities):
                self._resize(length)
            self._renew(slots)

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
        slots, priorities = self._checked(index, priority, storage)
        if slots.size:
            self._update(slots, priorities)

    def check_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Raises the errors of :meth:`update_priority`, which has the same arguments."""
        self._checked(index, priority, storage)

    def _checked(
        self, index: Any, priority: float | Tensor, storage: Storage | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The stored slots among ``index``, and a valid priority for each of them."""
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
            return slots, priorities
        # Viewed as unsigned, negative numbers are large: one check finds both kinds of bad slots.
        if np.maximum.reduce(slots.view(np.uint64)) >= len(self._priorities):
            outside = (slots < -1) | (slots >= len(self._priorities))
            if outside.any():
                in_use = len(self._priorities)
                raise IndexError(f"Index {slots[outside][0]} is outside the {in_use} slots in use.")
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

    def _renew(self, slots: np.ndarray) -> None:
        """Sets slots with new transitions to the default priority."""
        self._write(slots, np.float32(self.default_priority))

    def _write(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._priorities.array[slots] = priorities
        if self._distribution is not None:
            self._distribution.mark(slots)

    def _resize(self, length: int) -> None:
        before = len(self._priorities)
        self._priorities.resize(length, fill=self.default_priority)
        if self._distribution is None:
            return
        if length > before:
            self._distribution.mark(np.arange(before, length))
        else:
            self._distribution.mark_all()

    def reset(self) -> None:
        """Removes all priorities."""
        self._priorities = SlotArray()
        if self._distribution is not None:
            self._distribution.mark_all()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return super().state_dict() | {
            "priorities": torch.from_numpy(self._priorities.array.copy())
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_state(state_dict)
        self._priorities.load(state_dict["priorities"].double().cpu().numpy())
        if self._distribution is not None:
            self._distribution.mark_all()

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        super()._check_state(state_dict)
        priorities = state_dict["priorities"]
        if not (
            isinstance(priorities, Tensor)
            and priorities.ndim == 1
            and priorities.is_floating_point()
        ):
            name = type(self).__name__
            raise ValueError(f"The priorities of the state of {name} are not a vector of numbers.")
        values = priorities.double().cpu().numpy()
        self._validate(np.arange(len(values)), values, torch.finfo(torch.float32).eps)
