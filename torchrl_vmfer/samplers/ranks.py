"""Slots in the exact order of their priorities, with batched updates."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["RankBlocks", "RankIndex", "bits_of", "codes_of", "compiled_functions"]
__all__ += ["make_rank_index"]

_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_TOP = np.int64(np.iinfo(np.int32).max)
_WIDTH = 128  # of a block, as in compiled/samplers.h


def compiled_functions() -> Any:
    """The extension module whose functions samplers use, or ``None`` if it was not built.

    Samplers compute the same results without them.
    """
    from torchrl_vmfer.compiled import functions  # imported here: it also imports the losses

    return functions()


class RankIndex:
    """An index that finds the slot of any rank, where the highest priority has rank 0.

    Each slot has an integer code; codes sort by descending priority, then by slot. The codes form
    a long sorted run. Changes since the run was built are stored in two short sorted lists: codes
    to add, and positions of the run that are no longer valid. The index stores the rank of each
    added code in the union, so two binary searches in the short lists find the code of a rank.
    When the lists grow beyond a multiple of √n, they are merged into the run: an update of b slots
    has an amortized cost of O(b log n + √n log n).

    The results do not depend on the history of merges.

    Examples:
        >>> index = RankIndex()
        >>> index.rebuild(np.array([0.5, 3.0, 1.0], dtype=np.float32))
        >>> index.slots_at(np.array([0, 1, 2]))
        array([1, 2, 0])
        >>> index.update(np.array([2]), np.array([9.0], dtype=np.float32))
        >>> index.slots_at(np.array([0, 1, 2]))
        array([2, 1, 0])
    """

    def __init__(self) -> None:
        self.rebuild(np.empty(0, np.float32))

    def _start_run(self, run: np.ndarray) -> None:
        nothing: np.ndarray = np.empty(0, np.int64)
        self._run = run
        self._dead = nothing  # positions of the run that are no longer valid
        self._live_before_dead = nothing  # the number of live positions before each
        self._added = nothing  # codes that are not in the run
        self._added_at = nothing  # the position in the run where each would be inserted
        self._live_before_added = nothing  # the number of live positions before that
        self._added_rank = nothing  # its rank in the union
        self._merge_size = max(512, 8 * int(np.sqrt(len(run))))

    def __len__(self) -> int:
        return len(self._run) - len(self._dead) + len(self._added)

    def rebuild(self, priorities: np.ndarray) -> None:
        """Re-sorts the slots 0 to n - 1 by their non-negative ``float32`` priorities."""
        self.restore(bits_of(priorities))

    def restore(self, bits: np.ndarray) -> None:
        """Re-sorts the slots by the bits of their priorities; -1 is a slot without priority."""
        self._bits = bits
        (slots,) = (bits >= 0).nonzero()
        self._start_run(np.sort(codes_of(bits[slots], slots)))

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities of some slots, including new slots after the last.

        Args:
            slots: the slot numbers. A slot that occurs twice must have the same priority.
            priorities: their non-negative ``float32`` priorities.
        """
        order = np.argsort(slots)
        slots = slots[order]
        is_last = np.empty(len(slots), bool)
        is_last[:-1], is_last[-1:] = slots[1:] != slots[:-1], True
        slots, priorities = slots[is_last], priorities[order[is_last]]
        self._reserve(int(slots[-1]) + 1 if len(slots) else 0)
        new, old = bits_of(priorities), self._bits[slots]
        changed = old != new
        slots, old, new = slots[changed], old[changed], new[changed]
        self._bits[slots] = new
        known = old >= 0
        old_codes = np.sort(codes_of(old[known], slots[known]))
        new_codes = np.sort(codes_of(new, slots))
        at = self._run.searchsorted(np.concatenate([old_codes, new_codes]))
        self._withdraw(old_codes, at[: len(old_codes)])
        self._add_codes(new_codes, at[len(old_codes) :])
        self._added_rank = np.arange(len(self._added)) + self._live_before_added
        self._live_before_dead = self._dead - np.arange(len(self._dead))
        if len(self._added) > self._merge_size or len(self._run) == 0:
            self._start_run(self._merged())

    def slots_at(self, ranks: np.ndarray) -> np.ndarray:
        """The slots with the given ranks."""
        return self._codes_at(ranks) & _SLOT_MASK

    def ties_at(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each rank, the first rank with equal priority and one past the last."""
        codes = self._codes_at(ranks)
        return self._rank_of(codes & ~_SLOT_MASK), self._rank_of(codes | _SLOT_MASK)

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
        first, end = ranks.copy(), ranks + 1
        # Equal priorities are adjacent: a search is needed only if a neighbor is equal. (The first
        # code is compared with some other code of the run and the last one with itself. If these
        # are equal, the search still finds the correct bounds.)
        near = np.concatenate([ranks - 1, ranks, np.minimum(end, len(self) - 1)])
        before, codes, after = self._codes_at(near).reshape(3, -1)
        levels, slots = codes >> _SLOT_BITS, codes & _SLOT_MASK
        (tied,) = ((levels == before >> _SLOT_BITS) | (levels == after >> _SLOT_BITS)).nonzero()
        if len(tied):
            codes = codes[tied]
            bounds = np.concatenate([codes & ~_SLOT_MASK, codes | _SLOT_MASK])
            low, high = self._rank_of(bounds).reshape(2, -1)
            first[tied], end[tied] = low, high
            slots[tied] = self.slots_at(low + (random[tied] * (high - low)).astype(np.int64))
        return slots, first, end

    def _reserve(self, size: int) -> None:
        if size > len(self._bits):
            grown = np.full(max(size, 2 * len(self._bits)), -1, np.int32)
            grown[: len(self._bits)] = self._bits
            self._bits = grown

    def _withdraw(self, codes: np.ndarray, at_run: np.ndarray) -> None:
        at = self._added.searchsorted(codes)
        is_added = np.zeros(len(codes), bool)
        if len(self._added):
            is_added = self._added[np.minimum(at, len(self._added) - 1)] == codes
        keep = np.ones(len(self._added), bool)
        keep[at[is_added]] = False
        self._added, self._added_at = self._added[keep], self._added_at[keep]
        dead = at_run[~is_added]
        # Each newly dead position reduces the count of the added codes after it.
        behind = self._added_at.searchsorted(dead, side="right")
        newly_dead = np.bincount(behind, minlength=len(keep) + 1).cumsum()
        self._live_before_added = self._live_before_added[keep] - newly_dead[: len(self._added)]
        (self._dead,) = _insert(self._dead.searchsorted(dead), (self._dead, dead))

    def _add_codes(self, codes: np.ndarray, at: np.ndarray) -> None:
        live = at - self._dead.searchsorted(at)
        self._added, self._added_at, self._live_before_added = _insert(
            self._added.searchsorted(codes),
            (self._added, codes),
            (self._added_at, at),
            (self._live_before_added, live),
        )

    def _merged(self) -> np.ndarray:
        # There are never more dead than added codes: every withdrawn code is replaced by a new one.
        run, freed = self._run, len(self._dead)
        run[self._dead] = self._added[:freed]
        if freed < len(self._added):
            run = np.append(run, self._added[freed:])
        run.sort(kind="stable")  # fast for nearly sorted data
        return run

    def _codes_at(self, ranks: np.ndarray) -> np.ndarray:
        added_before = self._added_rank.searchsorted(ranks)
        # Skip dead positions: those before the i-th live position have at most i live positions
        # before them.
        live_rank = ranks - added_before
        at = live_rank + self._live_before_dead.searchsorted(live_rank, side="right")
        if len(self._added) == 0:
            return self._run[at]
        candidate = np.minimum(added_before, len(self._added) - 1)
        is_added = self._added_rank[candidate] == ranks
        return np.where(is_added, self._added[candidate], self._run.take(at, mode="wrap"))

    def _rank_of(self, codes: np.ndarray) -> np.ndarray:
        """The number of smaller codes in the union."""
        at = self._run.searchsorted(codes)
        return at - self._dead.searchsorted(at) + self._added.searchsorted(codes)


def _insert(
    before: np.ndarray, *arrays_and_values: tuple[np.ndarray, np.ndarray]
) -> list[np.ndarray]:
    """``np.insert`` at the same sorted positions of several arrays, in half the time."""
    at = before + np.arange(len(before))
    size = len(arrays_and_values[0][0]) + len(before)
    is_old = np.ones(size, bool)
    is_old[at] = False
    results = []
    for array, values in arrays_and_values:
        result = np.empty(size, array.dtype)
        result[at] = values
        result[is_old] = array
        results.append(result)
    return results


def bits_of(priorities: np.ndarray) -> np.ndarray:
    """The bits of non-negative ``float32`` priorities, which sort like them."""
    return (priorities + np.float32(0)).view(np.int32)  # adding 0 turns -0 into 0


def codes_of(bits: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Codes that sort by descending priority, then by slot."""
    return ((_TOP - bits) << _SLOT_BITS) | slots


class RankBlocks:
    """A :class:`~torchrl_vmfer.samplers.ranks.RankIndex` that calls compiled functions.

    It gives the same results. The codes are kept in sorted blocks, so that a change moves the codes
    of at most two blocks. See ``ranks.c``.

    Args:
        kernels: the compiled functions.
    """

    spare_blocks = 64  # at least, after a rebuild

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self.rebuild(np.empty(0, np.float32))

    def __len__(self) -> int:
        return int(self._arrays[-2][self._arrays[-1][0]])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._bits,)  # pointers are valid for this object only

    def rebuild(self, priorities: np.ndarray) -> None:
        """As in :class:`RankIndex`, as are the other methods."""
        self.restore(bits_of(priorities))

    def restore(self, bits: np.ndarray) -> None:
        """Re-sorts the slots by the bits of their priorities; -1 is a slot without priority."""
        (slots,) = (bits >= 0).nonzero()
        codes = np.sort(codes_of(bits[slots], slots))
        filled = 2 * len(codes) // _WIDTH + 1
        capacity = filled + max(self.spare_blocks, filled // 2)
        # Codes, block, count, lowest, before, and the number of blocks in use.
        self._arrays = (
            np.empty((capacity, _WIDTH), np.int64),
            *(np.empty(capacity, np.int64) for _ in range(3)),
            *(np.empty(capacity + 1, np.int64), np.zeros(1, np.int64)),
        )
        self._bits = bits
        self._functions.ranks_fill(self._arrays, codes)

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities of some slots."""
        if not len(slots):
            return
        slots, bits = np.ascontiguousarray(slots, np.int64), bits_of(priorities)
        size = int(slots.max()) + 1
        if size > len(self._bits):
            grown = np.full(max(size, 2 * len(self._bits)), -1, np.int32)
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        if not self._functions.ranks_update(self._arrays, self._bits, slots, bits):
            self._bits[slots] = bits
            self.restore(self._bits)

    def ties_at(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each rank, the first rank with equal priority and one past the last."""
        return self.draw_at(ranks, np.zeros(len(ranks)))[1:]

    def draw_at(
        self, ranks: np.ndarray, random: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each rank, a slot drawn uniformly of those with equal priority, and their ranks."""
        ranks = np.ascontiguousarray(ranks, np.int64)
        random = np.ascontiguousarray(random, np.float64)
        found = np.empty((3, len(ranks)), np.int64)
        self._functions.ranks_draw(self._arrays, ranks, random, found)
        slots, first, end = found
        return slots, first, end


def make_rank_index() -> RankIndex | RankBlocks:
    """Makes an index that uses compiled functions where they are available."""
    functions = compiled_functions()
    return RankIndex() if functions is None else RankBlocks(functions)


def _restored(bits: np.ndarray) -> RankIndex | RankBlocks:
    index = make_rank_index()
    index.restore(bits)
    return index
