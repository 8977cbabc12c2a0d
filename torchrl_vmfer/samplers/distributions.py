"""Distributions over slots that follow changes of their priorities."""

from __future__ import annotations

import itertools
from typing import Literal, Protocol

import numpy as np
import torch

from torchrl_vmfer.samplers.ranks import compiled_functions, make_rank_index

__all__ = [
    "LARGEST_WEIGHT",
    "Distribution",
    "Mode",
    "PowerDistribution",
    "RankDistribution",
    "Resampling",
    "draw_by_inversion",
    "powers",
    "uniform",
]

Mode = Literal["uncertainty", "rank"]

# A power of a priority and its inverse must not exceed this number: the sum over 10⁹ slots, and
# its product with a probability, then stay within double precision.
LARGEST_WEIGHT = 1e290

_BRANCHES = 16  # weights per node of the tree of sums
_ROOTS = 4096  # the largest number of nodes at the top, which every draw reads


def uniform(count: int, generator: torch.Generator | None) -> np.ndarray:
    """Draws numbers in [0, 1) in double precision."""
    # torch.randint favors low numbers by up to n/2³², and single precision would round small
    # factors to multiples of 2⁻²⁴.
    return torch.rand(count, dtype=torch.float64, generator=generator, device="cpu").numpy()


def powers(priorities: np.ndarray, power: float) -> np.ndarray:
    """Raises priorities to a power, in double precision."""
    weights = priorities.astype(np.float64)
    return weights if power == 1 else weights**power


def draw_by_inversion(
    weights: np.ndarray, count: int, generator: torch.Generator | None
) -> np.ndarray:
    """Draws positions with P ∝ weight, in double precision, at a cost linear in their number."""
    mass = _running_sums(weights)
    return mass[:-1].searchsorted(uniform(count, generator) * mass[-1], side="right")


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


class _ChangedSlots:
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


class PowerDistribution:
    """P ∝ priority^power over slots.

    The powers are the leaves of a tree with the sums of 16 children at each inner node. A change
    recomputes the sums on the path to the top from their children, so that rounding errors do not
    accumulate. A draw chooses a top node by its sum, and then one of 16 children at each level: the
    cost hardly depends on the number of slots. The results do not depend on the history of changes.

    A priority of 0 has P = 0 for a positive power. If all priorities are 0, P is uniform.

    Args:
        power: the exponent of the priority; 0 is uniform.

    Examples:
        >>> distribution = PowerDistribution(2.0)
        >>> distribution.probabilities(np.array([1, 2, 0], dtype=np.float32))
        array([0.2, 0.8, 0. ])
    """

    def __init__(self, power: float) -> None:
        self.power = power
        self._levels = [np.zeros(1)]  # the weights of the slots, and sums up to the top nodes
        self._length = 0
        self._changed = _ChangedSlots()

    def mark(self, slots: np.ndarray) -> None:
        """Marks the priorities of some slots as changed. The next draw reads them."""
        self._changed.mark(slots, self._length)

    def mark_all(self) -> None:
        """Marks all priorities as possibly changed."""
        self._changed.mark_all()

    def draw(
        self, priorities: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draws slots with replacement.

        Args:
            priorities: the current priorities of all slots.
            count: the number of slots to draw.
            generator: the source of randomness; PyTorch's global one if ``None``.
        """
        self._refresh(priorities)
        *lower, top = self._levels
        mass = _running_sums(top)
        if mass[-1] == 0:
            return (uniform(count, generator) * self._length).astype(np.int64)
        if _BRANCHES * len(lower) * count > self._length:  # also bounds the memory of the draw
            return draw_by_inversion(lower[0][: self._length], count, generator)
        random = uniform(len(self._levels) * count, generator)
        random = random.reshape(len(self._levels), count)
        # A number in [0, 1) times the last sum is below it, even when rounded: with strict
        # comparisons, a node or slot of weight 0 is never chosen.
        nodes = mass.searchsorted(random[0] * mass[-1], side="right")
        for level, height in zip(reversed(lower), random[1:], strict=True):
            sums = _running_sums(level.reshape(-1, _BRANCHES).take(nodes, 0))
            chosen = (sums > (height * sums[:, -1])[:, None]).argmax(1)
            nodes = _BRANCHES * nodes + chosen
        return nodes

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """P of every slot."""
        # Changes nothing: a thread that prefetches batches may be drawing.
        weights = powers(priorities, self.power)
        total, count = weights.sum(), len(weights)
        return weights / total if total else np.full(count, 1 / max(count, 1))

    def _refresh(self, priorities: np.ndarray) -> None:
        slots, length = self._changed.take(), len(priorities)
        leaves = self._levels[0]
        if slots is None or length < self._length or length > len(leaves):
            self._rebuild(priorities)
        elif len(slots):
            leaves[slots] = powers(priorities[slots], self.power)
            nodes = slots
            for level, sums in itertools.pairwise(self._levels):
                nodes = nodes // _BRANCHES
                sums[nodes] = _sums(level.reshape(-1, _BRANCHES).take(nodes, 0))
        self._length = length

    def _rebuild(self, priorities: np.ndarray) -> None:
        # The size of the tree depends on the number of slots only, and so do the draws.
        leaves = np.zeros(1 << max(len(priorities) - 1, 0).bit_length())
        leaves[: len(priorities)] = powers(priorities, self.power)
        self._levels = [leaves]
        while len(self._levels[-1]) > _ROOTS:
            self._levels.append(_sums(self._levels[-1].reshape(-1, _BRANCHES)))


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
        self._changed = _ChangedSlots(smallest=8192)

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
        compiled = compiled_functions()
        if compiled is None:
            return self._mass[1:length].searchsorted(mass, side="right")
        ranks = np.empty(len(mass), np.int64)
        compiled.ranks_at(mass, self._mass, length, 1 - self.exponent, ranks)
        return ranks

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


class Resampling:
    """The distribution over the members of a pool, given their factors.

    Args:
        mode: ``"uncertainty"`` (P ∝ factor) or ``"rank"`` (P ∝ 1/rank within the pool, where the
            highest factor has rank 1; equal factors share the probability of their ranks).
        power: with ``"uncertainty"``, P ∝ factor^power.
    """

    def __init__(self, mode: Mode, power: float = 1.0) -> None:
        self.mode = mode
        self.power = power
        self._ranks = RankDistribution()

    def draw(
        self, factors: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draws positions in the pool, with replacement."""
        if self.mode == "uncertainty":
            return draw_by_inversion(powers(factors, self.power), count, generator)
        self._ranks.mark_all()
        return self._ranks.draw(factors, count, generator)

    def probabilities(self, factors: np.ndarray) -> np.ndarray:
        """The probability of each position."""
        if self.mode == "rank":
            self._ranks.mark_all()
            return self._ranks.probabilities(factors)
        weights = powers(factors, self.power)
        return weights / weights.sum()


def _running_sums(values: np.ndarray) -> np.ndarray:
    """The same numbers as ``values.cumsum(-1)``, in a third of the time."""
    return torch.from_numpy(values).cumsum(-1).numpy()


def _sums(rows: np.ndarray) -> np.ndarray:
    """The sum of each row, in half the time of ``rows.sum(1)``."""
    return np.einsum("ij->i", rows)


def _share(mass: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The mass of one slot among those that share the ranks from ``first`` to ``end``."""
    return (mass[end] - mass[first]) / (end - first)
