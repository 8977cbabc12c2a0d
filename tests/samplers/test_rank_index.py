"""Both indices of ranks against a full sort of the priorities, after every change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_vmfer.compiled import functions
from torchrl_vmfer.samplers.ranks import RankIndex, SortedCodes

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


CODES = [SortedCodes, lambda: functions().Ranks()]


@pytest.fixture(params=CODES)
def index(request):
    return RankIndex(request.param())


def drawn_at(index, ranks, count):
    """Slots and ties at some ranks of ``count``: the numbers choose among equal priorities."""
    first, end = np.array([index.ties(int(rank)) for rank in ranks]).reshape(-1, 2).T
    random = np.stack([(ranks + 0.5) / count, (ranks - first + 0.5) / (end - first)])
    mass = np.arange(count + 2, dtype=np.float64) - count - 1  # the ranks have equal masses
    found = index.draw(random, mass, count, 0.0) if count else (ranks, ranks, ranks)
    np.testing.assert_array_equal(found[1:], (first, end))
    return found


def assert_in_order(index, priorities):
    """Asserts that slots and ties at every rank equal those of a full sort."""
    ranks = np.arange(len(priorities))
    order = np.lexsort((ranks, -priorities))
    slots, first, end = drawn_at(index, ranks, len(ranks))
    np.testing.assert_array_equal(slots, order)
    rising, in_order = np.sort(priorities), priorities[order]
    expected = len(priorities) - np.searchsorted(rising, in_order, "right")
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(end, len(priorities) - np.searchsorted(rising, in_order, "left"))


def changed(index, priorities, slots, values):
    """Updates the index, checks it, and returns the priorities that it should now have."""
    slots, values = np.asarray(slots, np.int64), np.asarray(values, np.float32)
    missing = max(0, slots.max(initial=-1) + 1 - len(priorities))
    priorities = np.append(priorities, np.zeros(missing)).astype(np.float32)
    priorities[slots] = values
    index.update(np.append(slots, slots[:2]), priorities)
    assert_in_order(index, priorities)
    return priorities


def rebuilt(index, priorities):
    index.rebuild(priorities)
    assert_in_order(index, priorities)
    return priorities.copy()


def random_priorities(rng, count, *, levels):
    """Draws priorities. With few levels most are tied; without levels all are distinct."""
    if levels is None:
        return rng.uniform(0, 3, count).astype(np.float32)
    return (rng.integers(levels, size=count) / levels).astype(np.float32)


@pytest.mark.parametrize("levels", [None, 1, 3, 40])
@pytest.mark.parametrize("size", [1, 2, 7, 700, 5000])
def test_order_equals_a_full_sort_after_every_update(index, size, levels):
    rng = np.random.default_rng(size)
    priorities = rebuilt(index, random_priorities(rng, size, levels=levels))
    for _ in range(40):
        slots = rng.permutation(size)[: rng.integers(1, min(size, 300) + 1)]
        values = random_priorities(rng, len(slots), levels=levels)
        priorities = changed(index, priorities, slots, values)
    changed(index, priorities, np.arange(size), random_priorities(rng, size, levels=levels))


@pytest.mark.parametrize("levels", [None, 2])
def test_growth_from_nothing_mixed_with_updates(index, levels):
    rng = np.random.default_rng(2)
    priorities = np.empty(0, np.float32)
    assert_in_order(index, priorities)
    while len(priorities) < 3000:
        fresh = np.arange(len(priorities), len(priorities) + rng.integers(1, 200))
        old = rng.permutation(len(priorities))[: rng.integers(0, 50)]
        slots = rng.permutation(np.concatenate((old, fresh)))
        values = random_priorities(rng, len(slots), levels=levels)
        priorities = changed(index, priorities, slots, values)


@pytest.mark.parametrize("sign", [1, -1])
def test_priorities_that_only_rise_or_fall(index, sign):
    """All new codes are inserted at one end."""
    priorities = rebuilt(index, np.full(1500, 100, np.float32))
    rng = np.random.default_rng(7)
    for level in range(1, 31):
        slots = rng.permutation(1500)[:100]
        priorities = changed(index, priorities, slots, 100 + sign * (level + rng.random(100)))


def test_both_zeros_are_tied_and_adjacent_numbers_are_not(index):
    priorities = rebuilt(index, np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32))
    assert drawn_at(index, np.arange(5), 5)[0].tolist() == [2, 0, 1, 3, 4]
    for slots, values in (([0, 2], [-0.0, -0.0]), ([1, 4], [0.0, SMALLEST]), ([4], [-0.0])):
        priorities = changed(index, priorities, slots, values)
    assert index.ties(3) == (0, 5)
    above = np.nextafter(np.float32(1), 2, dtype=np.float32)
    rebuilt(index, np.array([1, above, 1, LARGEST], np.float32))
    assert [index.ties(rank)[0] for rank in range(4)] == [0, 1, 2, 2]


def test_rebuild_discards_all_previous_priorities_and_copies_its_argument(index):
    rng = np.random.default_rng(4)
    for size in (300, 10, 0, 1, 2000, 40):
        given = random_priorities(rng, size, levels=5)
        priorities = rebuilt(index, given)
        given[:] = 9
        changed(index, priorities, [size], [0.5])


# With few distinct values, ties, repeated values and both zeros are likely.
some_priority = st.sampled_from([0.0, -0.0, SMALLEST, 1.0, 1.0000001, 2.5, LARGEST]) | st.floats(
    min_value=0, max_value=LARGEST, width=32
)


@st.composite
def histories(draw):
    """Initial priorities, and batches of (distinct slots, priorities) that may append slots."""
    size = draw(st.integers(0, 12))
    start = draw(st.lists(some_priority, min_size=size, max_size=size))
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        grown = size + draw(st.integers(0, 3))
        old = draw(st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=size))
        slots = draw(st.permutations([*old, *range(size, grown)]))
        priorities = draw(st.lists(some_priority, min_size=len(slots), max_size=len(slots)))
        steps.append((slots, priorities))
        size = grown
    return start, steps


@pytest.mark.parametrize("make_codes", CODES)
@settings(max_examples=150)
@given(histories())
def test_any_history_of_updates_and_growth_keeps_the_order(make_codes, history):
    start, steps = history
    index = RankIndex(make_codes())
    priorities = rebuilt(index, np.array(start, np.float32))
    for slots, values in steps:
        priorities = changed(index, priorities, slots, values)
