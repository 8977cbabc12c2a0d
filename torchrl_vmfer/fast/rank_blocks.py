"""Slots in the exact order of their priorities, updated by compiled functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from torchrl_vmfer.fast.kernels import Kernels, load_kernels
from torchrl_vmfer.samplers.ranks import RankIndex, bits_of, codes_of

__all__ = ["RankBlocks", "make_rank_index", "ranks_at"]

_WIDTH = 128  # as in ranks.c


class _Ranks(ctypes.Structure):
    _fields_ = [
        ("capacity", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("codes", "block", "count", "lowest", "before")),
        ("bits", ctypes.c_void_p),
    ]


class RankBlocks:
    """A :class:`~torchrl_vmfer.samplers.ranks.RankIndex` that calls compiled functions.

    It gives the same results. The codes are kept in sorted blocks, so that a change moves the codes
    of at most two blocks. See ``ranks.c``.

    Args:
        kernels: the compiled functions.
    """

    spare_blocks = 64  # at least, after a rebuild

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.rebuild(np.empty(0, np.float32))

    def __len__(self) -> int:
        return int(self._arrays["before"][self._ranks.blocks])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._bits,)  # pointers are valid for this object only

    def rebuild(self, priorities: np.ndarray) -> None:
        """Re-sorts the slots 0 to n - 1 by their non-negative ``float32`` priorities."""
        self.restore(bits_of(priorities))

    def restore(self, bits: np.ndarray) -> None:
        """Re-sorts the slots by the bits of their priorities; -1 is a slot without priority."""
        (slots,) = (bits >= 0).nonzero()
        codes = np.sort(codes_of(bits[slots], slots))
        filled = 2 * len(codes) // _WIDTH + 1
        capacity = filled + max(self.spare_blocks, filled // 2)
        self._arrays = {
            "codes": np.empty((capacity, _WIDTH), np.int64),
            **{name: np.empty(capacity, np.int64) for name in ("block", "count", "lowest")},
            "before": np.empty(capacity + 1, np.int64),
        }
        pointers = {name: array.ctypes.data for name, array in self._arrays.items()}
        self._ranks = _Ranks(capacity=capacity, **pointers)
        self._bits = bits
        self._kernels.ranks_fill(ctypes.byref(self._ranks), len(codes), codes.ctypes.data)

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities of some slots, including new slots after the last.

        Args:
            slots: the slot numbers. A slot that occurs twice must have the same priority.
            priorities: their non-negative ``float32`` priorities.
        """
        if not len(slots):
            return
        slots, bits = np.ascontiguousarray(slots, np.int64), bits_of(priorities)
        size = int(slots.max()) + 1
        if size > len(self._bits):
            grown = np.full(max(size, 2 * len(self._bits)), -1, np.int32)
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        self._ranks.bits = self._bits.ctypes.data
        is_done = self._kernels.ranks_update(
            ctypes.byref(self._ranks), len(slots), slots.ctypes.data, bits.ctypes.data
        )
        if not is_done:
            self._bits[slots] = bits
            self.restore(self._bits)

    def ties_at(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each rank, the first rank with equal priority and one past the last."""
        return self.draw_at(ranks, np.zeros(len(ranks)))[1:]

    def draw_at(
        self, ranks: np.ndarray, random: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each rank, a slot drawn uniformly among those with equal priority.

        Args:
            ranks: the ranks.
            random: a number in [0, 1) for each rank.

        Returns:
            the slots, the first ranks with equal priority, and one past the last.
        """
        ranks = np.ascontiguousarray(ranks, np.int64)
        random = np.ascontiguousarray(random, np.float64)
        found = np.empty((3, len(ranks)), np.int64)
        inputs = (ranks.ctypes.data, random.ctypes.data)
        outputs, row = found.ctypes.data, found.strides[0]
        self._kernels.ranks_draw(
            *(ctypes.byref(self._ranks), len(ranks), *inputs),
            *(outputs, outputs + row, outputs + 2 * row),
        )
        slots, first, end = found
        return slots, first, end


def make_rank_index() -> RankIndex | RankBlocks:
    """Makes an index that uses compiled functions where they are available."""
    kernels = load_kernels()
    return RankIndex() if kernels is None else RankBlocks(kernels)


def ranks_at(
    points: np.ndarray, mass: np.ndarray, length: int, exponent: float
) -> np.ndarray | None:
    """Finds the ranks, counted from 0, at given points of the cumulative mass.

    Args:
        points: the points, from ``mass[0]`` to ``mass[length]``.
        mass: the cumulative mass, ascending; ``mass[r + 1] - mass[r]`` is the mass of rank r.
        length: the number of ranks, at least 1.
        exponent: the a in the mass (r + 1)^-a of rank r.

    Returns:
        the ranks; ``None`` if there are no compiled functions.
    """
    kernels = load_kernels()
    if kernels is None:
        return None
    ranks = np.empty(len(points), np.int64)
    kernels.ranks_at(
        *(len(points), points.ctypes.data, mass.ctypes.data, len(mass)),
        *(length, 1 - exponent, ranks.ctypes.data),
    )
    return ranks


def _restored(bits: np.ndarray) -> RankIndex | RankBlocks:
    index = make_rank_index()
    index.restore(bits)
    return index
