"""The order in which the slots of a storage were last written."""

from __future__ import annotations

import numpy as np

from torchrl_vmfer.samplers.slots import SlotArray

__all__ = ["WriteOrder"]


class WriteOrder:
    """Finds the slot that was written last, second to last, and so on.

    Round-robin writers fill the slots in ascending order and then start again at slot 0, so that
    the newest slot determines the order of all others. After other writes, the order is found by
    sorting, when it is needed.

    Examples:
        >>> order = WriteOrder()
        >>> order.write(np.array([0, 1, 2, 3]))
        >>> order.write(np.array([0, 1]))
        >>> order.slots_of_age(np.array([0, 1, 2, 3]))
        array([1, 0, 3, 2])
    """

    def __init__(self) -> None:
        self._written = SlotArray(np.int64)  # the number of the write to each slot
        self._num_writes = 0
        self._newest = -1
        self._is_ring = True
        self._sorted: np.ndarray | None = None  # slots by age, unless they form a ring

    def __len__(self) -> int:
        return len(self._written)

    @property
    def numbers(self) -> np.ndarray:
        """For each slot, a number that increases with the time of its last write; not copied."""
        return self._written.array

    def write(self, slots: np.ndarray) -> None:
        """Records writes, the oldest first. Slots below them that were not reported are older."""
        if len(slots) == 0:
            return
        self.resize(max(len(self), int(slots[0])))
        length = max(len(self), int(slots.max()) + 1)
        before = np.concatenate([[self._newest], slots[:-1]])
        follows = (slots == before + 1) | ((slots == 0) & (before == length - 1))
        self._is_ring = bool(self._is_ring and follows.all())
        self._sorted = None
        self._written.resize(length, fill=self._num_writes)
        first, self._num_writes = self._num_writes + 1, self._num_writes + 1 + len(slots)
        # The last of several writes to a slot counts.
        self._written.array[slots] = np.arange(first, self._num_writes)
        self._newest = int(slots[-1])

    def resize(self, length: int) -> None:
        """Sets the number of slots. New slots count as written now, in ascending order."""
        if length > len(self):
            self.write(np.arange(len(self), length))
        elif length < len(self):
            self.load(self.numbers[:length])

    def load(self, numbers: np.ndarray) -> None:
        """Restores the order from a copy of :attr:`numbers`."""
        self._written.load(numbers)
        self._num_writes = int(numbers.max(initial=-1)) + 1
        self._newest = int(numbers.argmax()) if len(numbers) else -1
        self._find_order()

    def slots_of_age(self, ages: np.ndarray) -> np.ndarray:
        """The slots with given ages, where the newest slot has age 0."""
        if not self._is_ring and self._sorted is None:
            self._find_order()
        if self._sorted is None:
            return (self._newest - ages) % len(self)
        return self._sorted[ages]

    def _find_order(self) -> None:
        oldest_first = np.roll(self.numbers, -1 - self._newest)
        self._is_ring = bool((np.diff(oldest_first) > 0).all())
        self._sorted = None if self._is_ring else np.argsort(-self.numbers, kind="stable")
