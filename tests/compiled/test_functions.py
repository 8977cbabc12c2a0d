"""The functions for samplers and storages equal their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_vmfer.samplers.ranks import SortedCodes, bits_of, codes_of


def mass_of_ranks(count, exponent):
    """Cumulative masses with the last term as their origin, as in the samplers."""
    mass = np.append(0, np.cumsum(np.arange(1, count + 1) ** -exponent))
    return mass - mass[-1]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_ranks_equal_those_in_numpy(levels, exponent, module):
    random = np.random.default_rng(0)
    priorities = random.integers(levels, size=700).astype(np.float32)
    bits, known, ranks, twin = (
        bits_of(priorities),
        bits_of(priorities),
        module.Ranks(),
        SortedCodes(),
    )
    for each in (ranks, twin):
        each.fill(np.sort(codes_of(bits, np.arange(700))))
    mass = mass_of_ranks(1000, exponent)
    for _ in range(60):  # also adds blocks
        slots = random.choice(700, 64)
        priorities[slots] = random.integers(levels, size=64)
        ranks.update(bits, slots, priorities)
        twin.update(known, slots, priorities)
        numbers, (found, expected) = random.random((2, 100)), np.empty((2, 3, 100), np.int64)
        twin.draw(numbers, mass, 700, 1 - exponent, expected)
        ranks.draw(numbers, mass, 700, 1 - exponent, found)
        np.testing.assert_array_equal(found, expected)
        assert ranks.ties(int(found[1, 0])) == twin.ties(int(found[1, 0])) == tuple(found[1:, 0])
    with pytest.raises(IndexError, match="slot 700"):
        ranks.update(bits, np.array([700]), priorities)
    with pytest.raises(ValueError, match="length"):
        ranks.draw(numbers, mass, 701, 1.0, found)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.5])
def test_the_first_guess_of_a_rank_is_usually_correct(exponent, module):
    """Otherwise a draw would take the time of the search that it avoids."""
    ranks, count = module.Ranks(), 300_000
    ranks.fill(np.sort(codes_of(bits_of(np.arange(count, dtype=np.float32)), np.arange(count))))
    numbers, found = np.random.default_rng(0).random((2, 10_000)), np.empty((3, 10_000), np.int64)
    assert ranks.draw(numbers, mass_of_ranks(1 << 19, exponent), count, 1 - exponent, found) < 500


def test_priorities_are_stored_unless_a_slot_or_value_does_not_fit(module):
    slots, values = np.array([3, 0, 3]), np.array([1.0, 2.5, 1.5], np.float32)
    priorities, updates = np.zeros(4, np.float32), np.zeros(4, np.int32)

    def store(slots, values, low, high):
        return module.store(slots, values, low, high, 2.0, priorities, updates, 7)

    assert store(slots, values, 1.1, 2.5) is None
    assert store(slots, values, 1.0, 2.4) is None
    assert store(np.array([3, -1, 3]), values, 1.0, 2.5) is None
    assert store(np.array([4, 0, 3]), values, 1.0, 2.5) is None
    assert store(slots, np.float32([1, np.nan, 1]), 0.0, 3.0) is None
    assert not priorities.any()
    assert not updates.any()
    assert store(slots, values, 1.0, 2.5) == 2.5
    np.testing.assert_array_equal(priorities, [2.5, 0, 0, 2.0])
    np.testing.assert_array_equal(updates, [7, 0, 0, 7])


def test_the_first_accepted_proposals_are_found(module):
    random, priorities = np.random.default_rng(0).random((2, 500)), np.float32([1, 0.5, 2, 0])
    slots = (random[0] * 4).astype(np.int64)
    expected = slots[random[1] * 2.5 < priorities[slots]]
    for size in (20, 500):
        found = np.empty(size, np.int64)
        assert module.accept(random, priorities, 2.5, found) == min(size, len(expected))
        np.testing.assert_array_equal(found[: len(expected)], expected[:size])


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
