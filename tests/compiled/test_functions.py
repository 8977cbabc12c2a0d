"""The functions for samplers and storages equal their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_vmfer.samplers.ranks import RankIndex, bits_of, codes_of

WIDTH = 128  # of a block, as in samplers.h


def ranks_of(module, priorities, spare):
    """The blocks of the ranks of some priorities, and the bits of these."""
    bits = bits_of(priorities)
    codes = np.sort(codes_of(bits, np.arange(len(bits))))
    capacity = 2 * len(codes) // WIDTH + 1 + spare
    arrays = (
        np.empty((capacity, WIDTH), np.int64),
        *(np.empty(capacity, np.int64) for _ in range(3)),
        *(np.empty(capacity + 1, np.int64), np.zeros(1, np.int64)),
    )
    module.ranks_fill(arrays, codes)
    return arrays, bits


@pytest.mark.parametrize("levels", [3, 10**6])
def test_ranks_equal_those_of_the_index_in_numpy(levels, module):
    random = np.random.default_rng(0)
    priorities = random.integers(levels, size=700).astype(np.float32)
    arrays, bits = ranks_of(module, priorities, 40)
    index = RankIndex()
    index.rebuild(priorities)
    for _ in range(30):
        slots = random.choice(700, 64, replace=False)
        new = random.integers(levels, size=64).astype(np.float32)
        assert module.ranks_update(arrays, bits, slots, bits_of(new))
        index.update(slots, new)
        at, numbers = random.integers(700, size=100), random.random(100)
        found = np.empty((3, 100), np.int64)
        module.ranks_draw(arrays, at, numbers, found)
        for ours, theirs in zip(found, index.draw_at(at, numbers), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_an_update_says_when_no_block_is_left(module):
    arrays, bits = ranks_of(module, np.zeros(1000, np.float32), 0)
    is_done = [
        module.ranks_update(arrays, bits, np.arange(1000), bits_of(np.full(1000, i, np.float32)))
        for i in range(1, 4)
    ]
    assert not all(is_done)


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
