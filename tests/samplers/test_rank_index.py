"""RankIndex against a full sort of the keys, after every change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_vmfer.samplers.rank_index import RankIndex

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


class EagerlyMergingIndex(RankIndex):
    """Merges after a handful of changes, so that small examples reach the merge as well."""

    def _start_run(self, run):
        super()._start_run(run)
        self._merge_size = 3


index_types = pytest.mark.parametrize("index_type", [RankIndex, EagerlyMergingIndex])


def assert_in_order(index, keys):
    """Every rank holds the slot, and every tie the range, that sorting all the keys gives."""
    ranks = np.arange(len(keys))
    assert len(index) == len(keys)
    order = np.lexsort((ranks, -keys))
    np.testing.assert_array_equal(index.slots_at(ranks), order)
    first, end = index.ties_at(ranks)
    rising = np.sort(keys)
    in_order = keys[order]
    np.testing.assert_array_equal(first, len(keys) - np.searchsorted(rising, in_order, "right"))
    np.testing.assert_array_equal(end, len(keys) - np.searchsorted(rising, in_order, "left"))


def changed(index, keys, slots, values):
    """Updates the index and returns the keys that it should now follow."""
    slots = np.asarray(slots, np.int64)
    values = np.asarray(values, np.float32)
    rising = np.argsort(slots)
    index.update(slots[rising], values[rising])
    keys = np.concatenate((keys, np.zeros(max(0, slots.max(initial=-1) + 1 - len(keys)))))
    keys = keys.astype(np.float32)
    keys[slots] = values
    return keys


def random_keys(rng, count, *, levels):
    """Keys on few levels are mostly tied; without levels they are all distinct."""
    if levels is None:
        return rng.uniform(0, 3, count).astype(np.float32)
    return (rng.integers(levels, size=count) / levels).astype(np.float32)


@pytest.mark.parametrize("levels", [None, 1, 3, 40])
@pytest.mark.parametrize("size", [1, 2, 7, 700, 5000])
def test_order_is_that_of_a_full_sort_after_every_update(size, levels):
    rng = np.random.default_rng(size)
    index = RankIndex()
    keys = random_keys(rng, size, levels=levels)
    index.rebuild(keys)
    assert_in_order(index, keys)
    for _ in range(40):
        slots = rng.permutation(size)[: rng.integers(1, min(size, 300) + 1)]
        keys = changed(index, keys, slots, random_keys(rng, len(slots), levels=levels))
        assert_in_order(index, keys)


@pytest.mark.parametrize("levels", [None, 3])
def test_order_survives_more_updates_than_a_merge_takes(levels):
    rng = np.random.default_rng(0)
    index = RankIndex()
    keys = random_keys(rng, 20_000, levels=levels)
    index.rebuild(keys)
    merges = 0
    for _ in range(30):
        slots = rng.choice(len(keys), size=index._merge_size // 4, replace=False)
        keys = changed(index, keys, slots, random_keys(rng, len(slots), levels=levels))
        assert_in_order(index, keys)
        merges += len(index._added) == 0
    assert merges > 3, "the updates were too few to merge"


@index_types
def test_one_update_larger_than_a_merge(index_type):
    rng = np.random.default_rng(1)
    index = index_type()
    keys = random_keys(rng, 3000, levels=50)
    index.rebuild(keys)
    keys = changed(index, keys, np.arange(3000), random_keys(rng, 3000, levels=50))
    assert_in_order(index, keys)


@index_types
@pytest.mark.parametrize("levels", [None, 2])
def test_growth_from_nothing_mixed_with_updates(index_type, levels):
    rng = np.random.default_rng(2)
    index = index_type()
    keys = np.empty(0, np.float32)
    assert_in_order(index, keys)
    while len(keys) < 3000:
        fresh = np.arange(len(keys), len(keys) + rng.integers(1, 200))
        old = rng.permutation(len(keys))[: rng.integers(0, 50)]
        slots = rng.permutation(np.concatenate((old, fresh)))
        keys = changed(index, keys, slots, random_keys(rng, len(slots), levels=levels))
        assert_in_order(index, keys)


@index_types
def test_a_key_that_goes_away_and_returns(index_type):
    keys = np.array([1, 1, 2, 2, 3], np.float32)
    index = index_type()
    index.rebuild(keys)
    for value in (5.0, 2.0, 0.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0):
        keys = changed(index, keys, [2], [value])
        assert_in_order(index, keys)


@index_types
def test_negative_zero_ties_with_zero(index_type):
    keys = np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32)
    index = index_type()
    index.rebuild(keys)
    assert_in_order(index, keys)
    assert index.slots_at(np.arange(5)).tolist() == [2, 0, 1, 3, 4]
    for slots, values in (([0, 2], [-0.0, -0.0]), ([1, 4], [0.0, SMALLEST]), ([4], [-0.0])):
        keys = changed(index, keys, slots, values)
        assert_in_order(index, keys)
    assert index.ties_at(np.array([3]))[0].tolist() == [0]
    assert index.ties_at(np.array([3]))[1].tolist() == [5]


def test_adjacent_float32_keys_are_told_apart():
    one = np.float32(1)
    keys = np.array([one, np.nextafter(one, 2, dtype=np.float32), one, LARGEST], np.float32)
    index = RankIndex()
    index.rebuild(keys)
    assert index.slots_at(np.arange(4)).tolist() == [3, 1, 0, 2]
    assert index.ties_at(np.arange(4))[0].tolist() == [0, 1, 2, 2]


def test_ranks_may_be_asked_in_any_order_and_repeatedly():
    rng = np.random.default_rng(3)
    index = RankIndex()
    keys = random_keys(rng, 500, levels=30)
    index.rebuild(keys)
    keys = changed(index, keys, np.arange(0, 500, 3), random_keys(rng, 167, levels=30))
    ranks = rng.integers(500, size=2000)
    np.testing.assert_array_equal(index.slots_at(ranks), np.lexsort((np.arange(500), -keys))[ranks])


@index_types
def test_rebuild_forgets_everything_before(index_type):
    rng = np.random.default_rng(4)
    index = index_type()
    keys = np.empty(0, np.float32)
    for size in (300, 10, 0, 1, 2000, 40):
        keys = changed(index, keys, np.arange(len(keys)), random_keys(rng, len(keys), levels=5))
        keys = random_keys(rng, size, levels=5)
        index.rebuild(keys)
        assert_in_order(index, keys)
        keys = changed(index, keys, [size], [0.5])
        assert_in_order(index, keys)


def test_rebuild_keeps_no_tie_to_the_array_it_was_given():
    keys = np.array([3, 2, 1], np.float32)
    index = RankIndex()
    index.rebuild(keys)
    keys[:] = 0
    index.update(np.array([1]), np.array([9], np.float32))
    assert_in_order(index, np.array([3, 9, 1], np.float32))


@index_types
def test_what_the_index_answers_does_not_depend_on_its_history(index_type):
    rng = np.random.default_rng(5)
    travelled, fresh = index_type(), RankIndex()
    keys = random_keys(rng, 400, levels=7)
    travelled.rebuild(keys)
    for _ in range(60):
        slots = rng.permutation(400)[:50]
        keys = changed(travelled, keys, slots, random_keys(rng, 50, levels=7))
    fresh.rebuild(keys)
    ranks = np.arange(400)
    np.testing.assert_array_equal(travelled.slots_at(ranks), fresh.slots_at(ranks))
    np.testing.assert_array_equal(travelled.ties_at(ranks), fresh.ties_at(ranks))


# Few distinct values make ties, returns to an earlier key and both zeros likely.
some_key = st.sampled_from([0.0, -0.0, SMALLEST, 1.0, 1.0000001, 2.5, LARGEST]) | st.floats(
    min_value=0, max_value=LARGEST, width=32
)


@st.composite
def histories(draw):
    """Initial keys, and batches of (distinct slots, keys) that may append to the last slot."""
    size = draw(st.integers(0, 12))
    start = draw(st.lists(some_key, min_size=size, max_size=size))
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        grown = size + draw(st.integers(0, 3))
        old = draw(st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=size))
        slots = draw(st.permutations([*old, *range(size, grown)]))
        keys = draw(st.lists(some_key, min_size=len(slots), max_size=len(slots)))
        steps.append((slots, keys))
        size = grown
    return start, steps


@index_types
@settings(max_examples=150)
@given(histories())
def test_any_history_of_updates_and_growth_keeps_the_order(index_type, history):
    start, steps = history
    keys = np.array(start, np.float32)
    index = index_type()
    index.rebuild(keys)
    assert_in_order(index, keys)
    for slots, values in steps:
        keys = changed(index, keys, slots, values)
        assert_in_order(index, keys)
