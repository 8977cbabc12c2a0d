"""A distribution over slots whose probability is a power of the priority."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from torchrl_vmfer.samplers.changed_slots import ChangedSlots
from torchrl_vmfer.samplers.slots import uniform

__all__ = ["LARGEST_WEIGHT", "PowerDistribution", "draw_by_inversion", "powers"]

# A power of a priority and its inverse must not exceed this number: the sum over 10⁹ slots, and
# its product with a probability, then stay within double precision.
LARGEST_WEIGHT = 1e290

_BRANCHES = 16  # weights per node of the tree of sums
_ROOTS = 4096  # the largest number of nodes at the top, which every draw reads


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
        self._changed = ChangedSlots()

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


def _running_sums(values: np.ndarray) -> np.ndarray:
    """The same numbers as ``values.cumsum(-1)``, in a third of the time."""
    return torch.from_numpy(values).cumsum(-1).numpy()


def _sums(rows: np.ndarray) -> np.ndarray:
    """The sum of each row, in half the time of ``rows.sum(1)``."""
    return np.einsum("ij->i", rows)
