"""A distribution over slots whose probability decreases with the rank of the priority."""

from __future__ import annotations

import numpy as np
import torch

from torchrl_vmfer.fast.rank_blocks import make_rank_index, ranks_at
from torchrl_vmfer.samplers.changed_slots import ChangedSlots

__all__ = ["RankDistribution"]


class RankDistribution:
    """P ∝ rank^-exponent over slots sorted by descending priority, where the first has rank 1.

    Equal priorities share the probability of their ranks evenly, so that P depends only on the
    priorities.

    Args:
        exponent: how fast the probability decreases with the rank; 0 is uniform.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        self.exponent = exponent
        self._index = make_rank_index()
        # _mass[end] - _mass[first] is the sum of rank^-exponent over the ranks first + 1 to end.
        self._mass = np.zeros(1)
        self._changed = ChangedSlots(smallest=8192)

    def mark(self, slots: np.ndarray) -> None:
        """Marks the priorities of some slots as changed. The next draw reads them."""
        self._changed.mark(slots, len(self._index))

    def mark_all(self) -> None:
        """Marks all priorities as possibly changed."""
        self._changed.mark_all()

    def draw(
        self, priorities: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draws slots with replacement. The arguments are those of :meth:`draw_with_ties`."""
        return self.draw_with_ties(priorities, count, generator)[0]

    def draw_with_ties(
        self, priorities: np.ndarray, count: int, generator: torch.Generator | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws slots with replacement, and returns the ranks that equal priorities share.

        Args:
            priorities: the current priorities of all slots.
            count: the number of slots to draw.
            generator: the source of randomness; PyTorch's global one if ``None``.

        Returns:
            the slots, and for each slot the first rank of its group of equal priorities and one
            past the last rank.
        """
        self._refresh(priorities)
        random = torch.rand(
            2, count, dtype=torch.float64, generator=generator, device="cpu"
        ).numpy()
        return self._index.draw_at(self._ranks_of(random[0], len(priorities)), random[1])

    def ratios(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The lowest probability of any slot, divided by those of drawn slots."""
        lowest = _share(self._mass, *self._index.ties_at(np.array([len(self._index) - 1])))
        return lowest / _share(self._mass, first, end)

    def _ranks_of(self, random: np.ndarray, length: int) -> np.ndarray:
        """The ranks, counted from 0, at some fractions of the total mass."""
        mass = random * (self._mass[length] - self._mass[0]) + self._mass[0]
        found = ranks_at(mass, self._mass, length, self.exponent)
        return self._mass[1:length].searchsorted(mass, side="right") if found is None else found

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """P of every slot."""
        # Changes nothing: a thread that prefetches batches may be drawing.
        mass = self._mass_for(len(priorities))
        _, group, size = np.unique(-priorities, return_inverse=True, return_counts=True)
        end = np.cumsum(size)
        return (_share(mass, end - size, end) / (mass[len(priorities)] - mass[0]))[group]

    def _mass_for(self, length: int) -> np.ndarray:
        # The size depends only on the number of slots, so that a loaded sampler rounds like the
        # saved one.
        size = 1 << length.bit_length()
        if len(self._mass) == size + 1:
            return self._mass
        # Summed from the smallest term: otherwise small terms would be lost to rounding.
        ranks = np.arange(size, 0, -1, dtype=np.float64)
        return -np.append(np.cumsum(ranks**-self.exponent)[::-1], 0.0)

    def _refresh(self, priorities: np.ndarray) -> None:
        self._mass = self._mass_for(len(priorities))
        slots = self._changed.take()
        if slots is None or len(priorities) < len(self._index):
            self._index.rebuild(priorities)
        elif len(slots):
            slots = slots[slots < len(priorities)]
            self._index.update(slots, priorities[slots])


def _share(mass: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The mass of one slot among those that share the ranks from ``first`` to ``end``."""
    return (mass[end] - mass[first]) / (end - first)
