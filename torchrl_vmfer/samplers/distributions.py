"""Slots of a storage, one number per slot, and distributions over slots that follow changes."""

from __future__ import annotations

import itertools
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer.samplers.ranks import RankIndex, compiled_functions, sorted_slots

Mode = Literal["uncertainty", "rank"]
Generator: TypeAlias = torch.Generator | None  # None: PyTorch's global one

# A power of a priority and its inverse must not exceed this number: the sum over 10⁹ slots, and
# its product with a probability, then stay within double precision.
LARGEST_WEIGHT = 1e290

_BRANCHES = 16  # weights per node of the tree of sums
_ROOTS = 4096  # the largest number of nodes at the top, which every draw reads
# Proposals per missing draw in each round of rejection. If critics mostly agree, the first round
# suffices. With all factors at 1, the lowest value for two critics, one proposal in e is accepted.
_ROUNDS = (1.5, 3, 3, 3, 3, 3, 3, 3)


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


class SlotArray:
    """An array with one number per slot, which doubles in size when necessary.

    The capacity of a storage may be unknown, huge or subject to change. The numbers are not a
    tensor, whose memory torch.multiprocessing would share with the samplers of other processes.
    """

    def __init__(self, dtype: type[np.generic] = np.float32) -> None:
        self._memory = np.empty(0, dtype)
        self.length = 0

    @property
    def array(self) -> np.ndarray:
        """The numbers of the live slots, not copied. The last of several assignments wins."""
        return self._memory[: self.length]

    def resize(self, length: int, fill: float) -> None:
        """Sets the number of live slots. New slots are set to ``fill``."""
        if length > len(self._memory):
            spare = np.empty(max(length, 2 * len(self._memory)) - self.length, self._memory.dtype)
            self._memory = np.concatenate([self.array, spare])
        self._memory[self.length : length] = fill
        self.length = length

    def load(self, values: np.ndarray) -> None:
        """Replaces all numbers with a copy of ``values``."""
        self._memory = np.array(values, self._memory.dtype)
        self.length = len(values)


def uniform(count: int, generator: Generator) -> np.ndarray:
    """Draws numbers in [0, 1) in double precision."""
    # torch.randint favors low numbers by up to n/2³², and single precision would round small
    # factors to multiples of 2⁻²⁴.
    return torch.rand(count, dtype=torch.float64, generator=generator, device="cpu").numpy()


class Distribution:
    """A distribution over slots, as a function of one priority per slot.

    A subclass implements ``draw`` and ``probabilities``. If it keeps sums or an order of the
    priorities, ``_changes`` returns which of them to read again.
    """

    _smallest = 0  # for fewer slots, reading all priorities again is faster than updating some

    def __init__(self) -> None:
        self._length = 0  # the number of slots at the last draw
        self._marked: list[np.ndarray] | None = None  # None: any priority may have changed
        self._num_marked = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_marked": None, "_num_marked": 0}  # a copy reads all priorities

    def mark(self, slots: np.ndarray) -> None:
        """Marks the priorities of some slots as changed. The next draw reads them."""
        if self._marked is None:
            return
        self._num_marked += len(slots)
        if self._length < self._smallest or self._num_marked > self._length // 8:
            self.mark_all()
        else:
            self._marked.append(slots.copy())

    def mark_all(self) -> None:
        """Marks all priorities as possibly changed."""
        self._marked, self._num_marked = None, 0

    def _changes(self, length: int) -> np.ndarray | None:
        """Returns the changed slots and unmarks them; ``None`` means all."""
        marked, self._marked, self._num_marked = self._marked, [], 0
        self._length = length
        if marked is None or len(marked) == 1:
            return marked[0] if marked else None
        return np.concatenate(marked) if marked else np.empty(0, np.int64)

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """Draws slots with replacement, given the current priorities of all slots."""
        raise NotImplementedError

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """P of every slot. Changes nothing: a thread that prefetches batches may be drawing."""
        raise NotImplementedError


class PowerDistribution(Distribution):
    """P ∝ priority^power over slots.

    The powers are the leaves of a tree with the sums of 16 children at each inner node. A change
    recomputes the sums on the path to the top from their children, so that rounding errors do not
    accumulate. A draw chooses a top node by its sum, and then one of 16 children at each level: the
    cost hardly depends on the number of slots. The results do not depend on the history of changes.

    A priority of 0 has P = 0 for a positive power. If all priorities are 0, P is uniform.
    """

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power
        self._levels = [np.zeros(1)]  # the weights of the slots, and sums up to the top nodes

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """As in :class:`Distribution`."""
        self._refresh(priorities)
        *lower, top = self._levels
        mass = _running_sums(top)
        if mass[-1] == 0:
            return (uniform(count, generator) * self._length).astype(np.int64)
        if _BRANCHES * len(lower) * count > self._length:  # also bounds the memory of the draw
            return _draw_by_inversion(lower[0][: self._length], count, generator)
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
        weights = _powers(priorities, self.power)
        total, count = weights.sum(), len(weights)
        return weights / total if total else np.full(count, 1 / max(count, 1))

    def _refresh(self, priorities: np.ndarray) -> None:
        slots = self._changes(len(priorities))
        leaves = self._levels[0]
        if slots is None or len(priorities) > len(leaves):
            self._rebuild(priorities)
        elif len(slots):
            leaves[slots] = _powers(priorities[slots], self.power)
            nodes = slots
            for level, sums in itertools.pairwise(self._levels):
                nodes = nodes // _BRANCHES
                sums[nodes] = _sums(level.reshape(-1, _BRANCHES).take(nodes, 0))

    def _rebuild(self, priorities: np.ndarray) -> None:
        # The size of the tree depends on the number of slots only, and so do the draws.
        leaves = np.zeros(1 << max(len(priorities) - 1, 0).bit_length())
        leaves[: len(priorities)] = _powers(priorities, self.power)
        self._levels = [leaves]
        while len(self._levels[-1]) > _ROOTS:
            self._levels.append(_sums(self._levels[-1].reshape(-1, _BRANCHES)))


class RejectionDistribution(PowerDistribution):
    """P ∝ priority^power for positive priorities up to a bound, drawn by rejection.

    It keeps nothing, so that updates are free. A draw is fast for a power from 0 to 1.
    """

    def __init__(self, power: float, largest: float) -> None:
        super().__init__(power)
        self._bound = largest**power

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """As in :class:`Distribution`."""
        accepted: list[np.ndarray] = []
        missing = count
        for proposals_per_draw in _ROUNDS:
            size = int(proposals_per_draw * missing) + 16
            random = uniform(2 * size, generator).reshape(2, size)
            slots = self._accepted(priorities, random, missing)
            accepted.append(slots)
            missing -= len(slots)
            if missing == 0:
                break
        else:
            # Critics never yield factors far below 1, but such factors are allowed.
            weights = _powers(priorities, self.power)
            accepted.append(_draw_by_inversion(weights, missing, generator))
        return accepted[0] if len(accepted) == 1 else np.concatenate(accepted)

    def _accepted(self, priorities: np.ndarray, random: np.ndarray, count: int) -> np.ndarray:
        """The first of the proposals, made by ``random`` ``[2, n]``, that are accepted."""
        functions = compiled_functions()
        if functions is not None and self.power == 1:
            found = np.empty(count, np.int64)
            return found[: functions.accept(random, priorities, self._bound, found)]
        slots = (random[0] * len(priorities)).astype(np.int64)
        weights = _powers(priorities[slots], self.power)
        return slots[random[1] * self._bound < weights][:count]


class RankDistribution(Distribution):
    """P ∝ rank^-exponent over slots sorted by descending priority, where the first has rank 1.

    Equal priorities share the probability of their ranks evenly, so that P depends only on the
    priorities.
    """

    _smallest = 1024

    def __init__(self, exponent: float = 1.0) -> None:
        super().__init__()
        self.exponent = exponent
        self._index = RankIndex()
        # _mass[end] - _mass[first] is the sum of rank^-exponent over the ranks first + 1 to end.
        self._mass = np.zeros(1)

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """As in :class:`Distribution`."""
        return self.draw_with_ties(priorities, count, generator)[0]

    def draw_with_ties(
        self, priorities: np.ndarray, count: int, generator: Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Also returns the first rank of each slot's group of equal priorities, and one past it."""
        self._refresh(priorities)
        random = uniform(2 * count, generator).reshape(2, count)
        return self._index.draw(random, self._mass, len(priorities), self.exponent)

    def ratios(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The lowest probability of any slot, divided by those of drawn slots."""
        lowest = _share(self._mass, *self._index.ties(self._length - 1))
        return lowest / _share(self._mass, first, end)

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """P of every slot."""
        mass, found = self._mass_for(len(priorities)), np.empty(len(priorities))
        slots, end = sorted_slots(priorities)
        size = np.diff(end, prepend=0)
        shares = _share(mass, end - size, end) / (mass[len(priorities)] - mass[0])
        found[slots] = np.repeat(shares, size)
        return found

    def effective_sample_size(self, priorities: np.ndarray) -> float:
        """1 / Σ P². Only priorities are sorted, not slots, which is several times faster."""
        if not len(priorities):
            return 0.0
        mass, rising = self._mass_for(len(priorities)), np.sort(priorities)
        ends = np.flatnonzero(rising[1:] != rising[:-1]) + 1
        ends = np.concatenate(([0], ends, [len(rising)]))  # ends of groups of equal priority
        masses = np.diff(mass[len(rising) - ends])
        return float((mass[len(rising)] - mass[0]) ** 2 / np.dot(masses, masses / np.diff(ends)))

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
        slots = self._changes(len(priorities))
        if slots is None:
            self._index.rebuild(priorities)
        else:
            self._index.update(slots, priorities)


class InversionDistribution(PowerDistribution):
    """P ∝ priority^power, drawn once at linear cost, for which building a tree does not pay off."""

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """As in :class:`Distribution`."""
        return _draw_by_inversion(_powers(priorities, self.power), count, generator)


def resampling(mode: Mode, power: float = 1.0) -> Distribution:
    """The distribution over the members of a pool: P ∝ factor^power, or 1/rank in the pool."""
    return RankDistribution() if mode == "rank" else InversionDistribution(power)


def _powers(priorities: np.ndarray, power: float) -> np.ndarray:
    weights = priorities.astype(np.float64)
    return weights if power == 1 else weights**power


def _draw_by_inversion(weights: np.ndarray, count: int, generator: Generator) -> np.ndarray:
    """Draws positions with P ∝ weight, in double precision, at a cost linear in their number."""
    mass = _running_sums(weights)
    return mass[:-1].searchsorted(uniform(count, generator) * mass[-1], side="right")


def _running_sums(values: np.ndarray) -> np.ndarray:
    """The same numbers as ``values.cumsum(-1)``, in a third of the time."""
    return torch.from_numpy(values).cumsum(-1).numpy()


def _sums(rows: np.ndarray) -> np.ndarray:
    """The sum of each row, in half the time of ``rows.sum(1)``."""
    return np.einsum("ij->i", rows)


def _share(mass: np.ndarray, first: Any, end: Any) -> Any:
    """The mass of one slot among those that share the ranks from ``first`` to ``end``."""
    return (mass[end] - mass[first]) / (end - first)
