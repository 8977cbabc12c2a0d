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


class SortedCodes:
    """Codes in one sorted array, which an update copies.

    The compiled ``Ranks`` have the same methods and give the same results. They are faster, because
    a change moves the codes of at most two blocks. See ``compiled/samplers.h``.
    """

    def fill(self, codes: np.ndarray) -> None:
        """Replaces all codes by sorted ones."""
        self._codes = codes

    def update(self, bits: np.ndarray, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Replaces the codes of some slots. ``bits`` are those of the codes, -1 for none."""
        slots = np.unique(slots)
        new_bits, old_bits = bits_of(priorities[slots]), bits[slots]
        bits[slots] = new_bits
        is_known = old_bits >= 0
        dead = self._codes.searchsorted(codes_of(old_bits[is_known], slots[is_known]))
        left, new = np.delete(self._codes, dead), np.sort(codes_of(new_bits, slots))
        self._codes = np.insert(left, left.searchsorted(new), new)

    def draw(
        self, random: np.ndarray, mass: np.ndarray, length: int, power: float, found: np.ndarray
    ) -> None:
        """Implements :meth:`RankIndex.draw`; the mass of rank r is (r + 1)^(power - 1)."""
        points = random[0] * (mass[length] - mass[0]) + mass[0]
        codes = self._codes[mass[1:length].searchsorted(points, side="right")]
        first = self._codes.searchsorted(codes & ~_SLOT_MASK)
        end = self._codes.searchsorted(codes | _SLOT_MASK)
        chosen = first + (random[1] * (end - first)).astype(np.int64)
        found[:] = self._codes[chosen] & _SLOT_MASK, first, end

    def ties(self, rank: int) -> tuple[int, int]:
        """Implements :meth:`RankIndex.ties`."""
        code = self._codes[rank]
        first, end = self._codes.searchsorted([code & ~_SLOT_MASK, code | _SLOT_MASK])
        return int(first), int(end)


class RankIndex:
    """An index that finds the slot of any rank, where the highest priority has rank 0.

    Each slot has an integer code; codes sort by descending priority, then by slot. They are in a
    :class:`SortedCodes` or in compiled ``Ranks``, by default if these were built.
    """

    def __init__(self, codes: Any = None) -> None:
        if codes is None:
            extension = compiled_functions()
            codes = SortedCodes() if extension is None else extension.Ranks()
        self._codes = codes
        self.rebuild(np.empty(0, np.float32))

    def __reduce__(self) -> tuple[Any, ...]:
        return RankIndex, ()  # empty: compiled objects cannot be pickled

    def rebuild(self, priorities: np.ndarray) -> None:
        """Re-sorts the slots 0 to n - 1 by their non-negative ``float32`` priorities."""
        self._bits = bits_of(priorities)
        self._codes.fill(np.sort(codes_of(self._bits, np.arange(len(priorities)))))

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Reads the priorities of some slots again, also of new slots after the last."""
        size = len(priorities)
        if size > len(self._bits):
            grown = np.full(max(size, 2 * len(self._bits)), -1, np.int32)  # -1: no priority yet
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        self._codes.update(self._bits, slots, priorities)

    def draw(
        self, random: np.ndarray, mass: np.ndarray, length: int, exponent: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws from the first ``length`` ranks, and from the slots that share their priorities.

        The numbers ``random`` ``[2, count]`` in [0, 1) may be overwritten. The mass of rank r,
        counted from 0, is ``mass[r + 1] - mass[r]`` = (r + 1)^-exponent. Returns the slots, the
        first rank with the same priority and one past the last.
        """
        found = np.empty((3, random.shape[1]), np.int64)
        self._codes.draw(random, mass, length, 1 - exponent, found)
        slots, first, end = found
        return slots, first, end

    def ties(self, rank: int) -> tuple[int, int]:
        """The first rank with the same priority as a rank, and one past the last."""
        return self._codes.ties(rank)


@cache
def compiled_functions() -> Any:
    """The extension module of :mod:`torchrl_vmfer.compiled`; ``None`` if it was not built."""
    from torchrl_vmfer.compiled import functions  # imported here: it also imports the losses

    return functions()
