"""The functions for samplers and storages equal their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_vmfer.samplers.ranks import RankIndex, bits_of, codes_of


@pytest.mark.parametrize("levels", [3, 10**6])
def test_ranks_equal_those_of_the_index_in_numpy(levels, module):
    random = np.random.default_rng(0)
    priorities = random.integers(levels, size=700).astype(np.float32)
    bits, ranks, index = bits_of(priorities), module.Ranks(), RankIndex()
    assert ranks.fill(np.sort(codes_of(bits, np.arange(700)))) == 700
    index.rebuild(priorities)
    for _ in range(60):  # also adds blocks
        slots = random.choice(700, 64, replace=False)
        new = random.integers(levels, size=64).astype(np.float32)
        assert ranks.update(bits, slots, bits_of(new)) == 700
        index.update(slots, new)
        at, numbers = random.integers(700, size=100), random.random(100)
        found = np.empty((3, 100), np.int64)
        ranks.draw(at, numbers, found)
        for ours, theirs in zip(found, index.draw_at(at, numbers), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7])
def test_ranks_at_points_of_the_cumulative_mass(exponent, module):
    masses = np.arange(1, 1001) ** -exponent
    mass = np.concatenate([np.zeros(1), np.cumsum(masses)])
    # The last term is the origin, as in the samplers.
    mass -= mass[-1]
    points = np.sort(np.random.default_rng(0).uniform(mass[0], mass[800], 500))
    found = np.empty(500, np.int64)
    module.ranks_at(points, mass, 800, 1 - exponent, found)
    np.testing.assert_array_equal(found, np.searchsorted(mass[1:801], points, side="right"))


def test_slots_are_accepted_in_proportion_to_their_factors(module):
    random = np.random.default_rng(0)
    factors = random.uniform(0.5, 2, 300).astype(np.float32)
    numbers, slots = random.random((2, 400)), np.empty(400, np.int64)
    count = module.accept_slots(numbers, factors, 2.0, 50, slots)
    proposed = (numbers[0] * 300).astype(np.int64)
    expected = proposed[numbers[1] * 2.0 < factors[proposed]]
    assert count == 50
    np.testing.assert_array_equal(slots[:50], expected[:50])
    with pytest.raises(ValueError, match="random"):
        module.accept_slots(np.ones((2, 4)), factors, 2.0, 2, slots[:4])


def test_factors_are_stored_if_all_are_within_the_interval(module):
    factors, updates = np.ones(10, np.float32), np.zeros(10, np.int32)
    slots, values = np.array([3, 5]), np.array([1.5, 2.5], np.float32)
    assert module.store_factors(slots, values, 1.0, 2.7, factors, updates, 7)
    assert factors[[3, 5]].tolist() == [1.5, 2.5]
    assert updates.tolist() == [0, 0, 0, 7, 0, 7, 0, 0, 0, 0]
    before = factors.copy()
    for slot, value in ((3, np.nan), (3, 2.8), (10, 1.5), (-1, 1.5)):
        one = np.array([value], np.float32)
        assert not module.store_factors(np.array([slot]), one, 1.0, 2.7, factors, updates, 8)
    np.testing.assert_array_equal(factors, before)


def test_rows_of_columns_are_read_and_written(module):
    random = np.random.default_rng(0)
    columns = (random.random((50, 7)), random.random((50, 1)) < 0.5, np.arange(50))
    index = random.integers(50, size=30)
    rows = tuple(np.empty((30, *column.shape[1:]), column.dtype) for column in columns)
    module.read_rows(columns, index, 50, rows)
    for column, found in zip(columns, rows, strict=True):
        np.testing.assert_array_equal(found, column[index])
    written = tuple(np.zeros_like(column) for column in columns)
    module.write_rows(written, index, 50, rows)
    for column, found in zip(columns, written, strict=True):
        np.testing.assert_array_equal(found[index], column[index])
    with pytest.raises(IndexError, match="row 50"):
        module.read_rows(columns, np.array([50]), 50, tuple(row[:1] for row in rows))
    with pytest.raises(ValueError, match="rows"):
        module.write_rows(columns, index, 50, (rows[0][:5], *rows[1:]))
