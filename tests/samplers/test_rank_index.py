"""Both indices of ranks against a full sort of the priorities, after every change."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_vmfer.compiled import functions
from torchrl_vmfer.samplers.ranks import RankBlocks, RankIndex

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


class Blocks(RankBlocks):
    """The index with compiled functions."""

    def __init__(self):
        super().__init__(functions())


class FewBlocks(Blocks):
    """Runs out of blocks soon, so that small examples also test the rebuild."""

    spare_blocks = 0


index_types = pytest.mark.parametrize("index_type", [RankIndex, Blocks, FewBlocks])


def slots_at(index, ranks):
    """The slots at some ranks: of equal priorities, the random number chooses one."""
    first, end = index.ties_at(ranks)
    return index.draw_at(ranks, (ranks - first + 0.5) / (end - first))[0]


def assert_in_order(index, priorities):
    """Asserts that slots and ties at every rank equal those of a full sort."""
    ranks = np.arange(len(priorities))
    assert len(index) == len(priorities)
    order = np.lexsort((ranks, -priorities))
    first, end = index.ties_at(ranks)
    np.testing.assert_array_equal(slots_at(index, ranks), order)
    rising = np.sort(priorities)
    in_order = priorities[order]
    np.testing.assert_array_equal(
        first, len(priorities) - np.searchsorted(rising, in_order, "right")
    )
    np.testing.assert_array_equal(end, len(priorities) - np.searchsorted(rising, in_order, "left"))


def changed(index, priorities, slots, values):
    """Updates the index and returns the priorities that it should now have."""
    slots = np.asarray(slots, np.int64)
    values = np.asarray(values, np.float32)
    index.update(np.append(slots, slots[:2]), np.append(values, values[:2]))
    priorities = np.concatenate(
        (priorities, np.zeros(max(0, slots.max(initial=-1) + 1 - len(priorities))))
    )
    priorities = priorities.astype(np.float32)
    priorities[slots] = values
    return priorities


def random_priorities(rng, count, *, levels):
    """Draws priorities. With few levels most are tied; without levels all are distinct."""
    if levels is None:
        return rng.uniform(0, 3, count).astype(np.float32)
    return (rng.integers(levels, size=count) / levels).astype(np.float32)


@index_types
@pytest.mark.parametrize("levels", [None, 1, 3, 40])
@pytest.mark.parametrize("size", [1, 2, 7, 700, 5000])
def test_order_equals_a_full_sort_after_every_update(index_type, size, levels):
    rng = np.random.default_rng(size)
    index = index_type()
    priorities = random_priorities(rng, size, levels=levels)
    index.rebuild(priorities)
    assert_in_order(index, priorities)
    for _ in range(40):
        slots = rng.permutation(size)[: rng.integers(1, min(size, 300) + 1)]
        priorities = changed(
            index, priorities, slots, random_priorities(rng, len(slots), levels=levels)
        )
        assert_in_order(index, priorities)


@index_types
def test_one_update_larger_than_a_merge(index_type):
    rng = np.random.default_rng(1)
    index = index_type()
    priorities = random_priorities(rng, 3000, levels=50)
    index.rebuild(priorities)
    priorities = changed(
        index, priorities, np.arange(3000), random_priorities(rng, 3000, levels=50)
    )
    assert_in_order(index, priorities)


@index_types
@pytest.mark.parametrize("levels", [None, 2])
def test_growth_from_nothing_mixed_with_updates(index_type, levels):
    rng = np.random.default_rng(2)
    index = index_type()
    priorities = np.empty(0, np.float32)
    assert_in_order(index, priorities)
    while len(priorities) < 3000:
        fresh = np.arange(len(priorities), len(priorities) + rng.integers(1, 200))
        old = rng.permutation(len(priorities))[: rng.integers(0, 50)]
        slots = rng.permutation(np.concatenate((old, fresh)))
        priorities = changed(
            index, priorities, slots, random_priorities(rng, len(slots), levels=levels)
        )
        assert_in_order(index, priorities)


@index_types
def test_a_priority_that_changes_and_changes_back(index_type):
    priorities = np.array([1, 1, 2, 2, 3], np.float32)
    index = index_type()
    index.rebuild(priorities)
    for value in (5.0, 2.0, 0.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0):
        priorities = changed(index, priorities, [2], [value])
        assert_in_order(index, priorities)


@index_types
def test_negative_zero_ties_with_zero(index_type):
    priorities = np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32)
    index = index_type()
    index.rebuild(priorities)
    assert_in_order(index, priorities)
    assert slots_at(index, np.arange(5)).tolist() == [2, 0, 1, 3, 4]
    for slots, values in (([0, 2], [-0.0, -0.0]), ([1, 4], [0.0, SMALLEST]), ([4], [-0.0])):
        priorities = changed(index, priorities, slots, values)
        assert_in_order(index, priorities)
    assert index.ties_at(np.array([3]))[0].tolist() == [0]
    assert index.ties_at(np.array([3]))[1].tolist() == [5]


@index_types
def test_adjacent_float32_priorities_are_distinguished(index_type):
    one = np.float32(1)
    priorities = np.array([one, np.nextafter(one, 2, dtype=np.float32), one, LARGEST], np.float32)
    index = index_type()
    index.rebuild(priorities)
    assert slots_at(index, np.arange(4)).tolist() == [3, 1, 0, 2]
    assert index.ties_at(np.arange(4))[0].tolist() == [0, 1, 2, 2]


@index_types
def test_ranks_may_be_queried_in_any_order_and_repeatedly(index_type):
    rng = np.random.default_rng(3)
    index = index_type()
    priorities = random_priorities(rng, 500, levels=30)
    index.rebuild(priorities)
    priorities = changed(
        index, priorities, np.arange(0, 500, 3), random_priorities(rng, 167, levels=30)
    )
    ranks = rng.integers(500, size=2000)
    np.testing.assert_array_equal(
        slots_at(index, ranks), np.lexsort((np.arange(500), -priorities))[ranks]
    )


@index_types
@pytest.mark.parametrize("sign", [1, -1])
def test_priorities_that_only_rise_or_fall(index_type, sign):
    """All new codes are inserted at one end."""
    index, priorities = index_type(), np.full(1500, 100, np.float32)
    index.rebuild(priorities)
    rng = np.random.default_rng(7)
    for level in range(1, 31):
        slots = rng.permutation(1500)[:100]
        priorities = changed(index, priorities, slots, 100 + sign * (level + rng.random(100)))
        assert_in_order(index, priorities)


@index_types
def test_rebuild_discards_all_previous_priorities(index_type):
    rng = np.random.default_rng(4)
    index = index_type()
    priorities = np.empty(0, np.float32)
    for size in (300, 10, 0, 1, 2000, 40):
        priorities = changed(
            index,
            priorities,
            np.arange(len(priorities)),
            random_priorities(rng, len(priorities), levels=5),
        )
        priorities = random_priorities(rng, size, levels=5)
        index.rebuild(priorities)
        assert_in_order(index, priorities)
        priorities = changed(index, priorities, [size], [0.5])
        assert_in_order(index, priorities)


@index_types
def test_rebuild_copies_its_argument(index_type):
    priorities = np.array([3, 2, 1], np.float32)
    index = index_type()
    index.rebuild(priorities)
    priorities[:] = 0
    index.update(np.array([1]), np.array([9], np.float32))
    assert_in_order(index, np.array([3, 9, 1], np.float32))


@index_types
def test_results_do_not_depend_on_the_history_of_the_index(index_type):
    rng = np.random.default_rng(5)
    updated, fresh = index_type(), RankIndex()
    priorities = random_priorities(rng, 400, levels=7)
    updated.rebuild(priorities)
    for _ in range(60):
        slots = rng.permutation(400)[:50]
        priorities = changed(updated, priorities, slots, random_priorities(rng, 50, levels=7))
    fresh.rebuild(priorities)
    ranks = np.arange(400)
    np.testing.assert_array_equal(slots_at(updated, ranks), slots_at(fresh, ranks))
    np.testing.assert_array_equal(updated.ties_at(ranks), fresh.ties_at(ranks))


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


@index_types
@settings(max_examples=150)
@given(histories())
def test_any_history_of_updates_and_growth_keeps_the_order(index_type, history):
    start, steps = history
    priorities = np.array(start, np.float32)
    index = index_type()
    index.rebuild(priorities)
    assert_in_order(index, priorities)
    for slots, values in steps:
        priorities = changed(index, priorities, slots, values)
        assert_in_order(index, priorities)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
@pytest.mark.parametrize("index_type", [RankIndex, Blocks])
def test_a_copy_is_independent_of_the_original(index_type, copied):
    priorities = random_priorities(np.random.default_rng(6), 2000, levels=40)
    index = index_type()
    index.rebuild(priorities)
    other = copied(index)
    changed(index, priorities, np.arange(500), np.full(500, 2.0))
    assert_in_order(other, priorities)
    assert_in_order(other, changed(other, priorities, [3, 2000], [0.5, 0.25]))


@index_types
def test_slots_of_other_integer_types(index_type):
    index = index_type()
    index.rebuild(np.zeros(5, np.float32))
    index.update(np.array([1, 4], np.int32), np.array([2, 1], np.float32))
    assert_in_order(index, np.array([0, 2, 0, 0, 1], np.float32))
