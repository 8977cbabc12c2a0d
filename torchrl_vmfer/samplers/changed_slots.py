"""The slots whose priorities changed since a distribution last read them."""

from __future__ import annotations

import numpy as np

__all__ = ["ChangedSlots"]


class ChangedSlots:
    """Collects changed slots until a distribution updates itself.

    For few slots, or a large fraction of many, reading all priorities again is faster than updating
    some.

    Args:
        smallest: the number of slots below which all priorities are read again.
    """

    def __init__(self, smallest: int = 0) -> None:
        self._smallest = smallest
        self._marked: list[np.ndarray] | None = None  # None: any priority may have changed
        self._num_marked = 0

    def mark(self, slots: np.ndarray, length: int) -> None:
        """Marks slots of a distribution over ``length`` slots."""
        if self._marked is None:
            return
        self._num_marked += len(slots)
        if length < self._smallest or self._num_marked > length // 8:
            self.mark_all()
        else:
            self._marked.append(slots.copy())

    def mark_all(self) -> None:
        """Marks all slots."""
        self._marked, self._num_marked = None, 0

    def take(self) -> np.ndarray | None:
        """Returns the marked slots in the order of marking and unmarks them; ``None`` means all."""
        marked, self._marked, self._num_marked = self._marked, [], 0
        if marked is None or len(marked) == 1:
            return marked[0] if marked else None
        return np.concatenate(marked) if marked else np.empty(0, np.int64)
