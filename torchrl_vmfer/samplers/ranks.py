"""Slots in the exact order of their priorities, with batched updates."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_TOP = np.int64(np.iinfo(np.int32).max)


def bits_of(priorities: np.ndarray) -> np.ndarray:
    """The bits of non-negative ``float32`` priorities, which sort like them."""
    return (priorities + np.float32(0)).view(np.int32)  # adding 0 turns -0 into 0


def codes_of(bits: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Codes that sort by descending priority, then by slot."""
    return ((_TOP - bits) << _SLOT_BITS) | slots


def sorted_slots(priorities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All slots by descending priority, and the ends of their groups of equal priority."""
    codes = np.sort(codes_of(bits_of(priorities), np.arange(len(priorities))))
    ends = np.flatnonzero(np.diff(codes >> _SLOT_BITS, append=-1)) + 1
    return codes & _SLOT_MASK, ends


class RankIndex:
    """An index that finds the slot of any rank, where the highest priority has rank 0.

    Each slot has an integer code; codes sort by descending priority, then by slot. Here, they are
    kept in one sorted array, which an update copies. :class:`RankBlocks` is faster.
    """

    def __init__(self) -> None:
        self.rebuild(np.empty(0, np.float32))

    def rebuild(self, priorities: np.ndarray) -> None:
        """Re-sorts the slots 0 to n - 1 by their non-negative ``float32`` priorities."""
        self._bits = bits_of(priorities)
        self._fill(np.sort(codes_of(self._bits, np.arange(len(priorities)))))

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Reads the priorities of some slots again, also of new slots after the last.

        Args:
            slots: the slots.
            priorities: the priorities of all slots.
        """
        size = len(priorities)
        if size > len(self._bits):
            grown = np.full(max(size, 2 * len(self._bits)), -1, np.int32)  # -1: no priority yet
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        self._change(slots, priorities)

    def draw(
        self, random: np.ndarray, mass: np.ndarray, length: int, exponent: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws from the first ``length`` ranks, and from the slots that share their priorities.

        Args:
            random: numbers in [0, 1), ``[2, count]``, which may be overwritten.
            mass: the mass of rank r, counted from 0, is ``mass[r + 1] - mass[r]``.
            length: the number of slots.
            exponent: the mass of rank r is (r + 1)^-exponent.

        Returns:
            the slots, the first rank with the same priority and one past the last.
        """
        points = random[0] * (mass[length] - mass[0]) + mass[0]
        codes = self._codes[mass[1:length].searchsorted(points, side="right")]
        first = self._codes.searchsorted(codes & ~_SLOT_MASK)
        end = self._codes.searchsorted(codes | _SLOT_MASK)
        chosen = first + (random[1] * (end - first)).astype(np.int64)
        return self._codes[chosen] & _SLOT_MASK, first, end

    def ties(self, rank: int) -> tuple[int, int]:
        """The first rank with the same priority as a rank, and one past the last."""
        code = self._codes[rank]
        first, end = self._codes.searchsorted([code & ~_SLOT_MASK, code | _SLOT_MASK])
        return int(first), int(end)

    def _fill(self, codes: np.ndarray) -> None:
        self._codes = codes

    def _change(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        slots = np.unique(slots)
        bits, old = bits_of(priorities[slots]), self._bits[slots]
        self._bits[slots] = bits
        is_known = old >= 0
        dead = self._codes.searchsorted(codes_of(old[is_known], slots[is_known]))
        left, new = np.delete(self._codes, dead), np.sort(codes_of(bits, slots))
        self._codes = np.insert(left, left.searchsorted(new), new)


class RankBlocks(RankIndex):
    """A :class:`RankIndex` that calls compiled functions and gives the same results.

    The codes are kept in sorted blocks, so that a change moves the codes of at most two blocks. See
    ``compiled/samplers.h``.
    """

    def __init__(self, functions: Any) -> None:
        self._functions, self._ranks = functions, functions.Ranks()
        super().__init__()

    def __reduce__(self) -> tuple[Any, ...]:
        return make_rank_index, ()  # empty: compiled objects cannot be pickled

    def draw(
        self, random: np.ndarray, mass: np.ndarray, length: int, exponent: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As in :class:`RankIndex`."""
        found = np.empty((3, random.shape[1]), np.int64)
        self._ranks.draw(random, mass, length, 1 - exponent, found)
        slots, first, end = found
        return slots, first, end

    def ties(self, rank: int) -> tuple[int, int]:
        """As in :class:`RankIndex`."""
        return self._ranks.ties(rank)

    def _fill(self, codes: np.ndarray) -> None:
        self._ranks.fill(codes)

    def _change(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._ranks.update(self._bits, slots, priorities)


@cache
def compiled_functions() -> Any:
    """The extension module of :mod:`torchrl_vmfer.compiled`; ``None`` if it was not built."""
    from torchrl_vmfer.compiled import functions  # imported here: it also imports the losses

    return functions()


def make_rank_index() -> RankIndex:
    """Makes an index that uses the extension module if it was built."""
    extension = compiled_functions()
    return RankIndex() if extension is None else RankBlocks(extension)
