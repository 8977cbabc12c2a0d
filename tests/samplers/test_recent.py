"""RecentSampler and OldSampler against a plain list of the writes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import filled_buffer, grid, grid_buffer, rows, seeded
from torchrl_vmfer import OldSampler, RecentSampler


def assert_newest_rows(buffer, count):
    """Compares the probabilities of the next batch with the rows, which are numbered in order."""
    stored = buffer.storage.get(slice(0, len(buffer)))["row"].flatten()
    expected = torch.zeros(len(stored), dtype=torch.float64)
    expected[stored.argsort(descending=True)[:count]] = 1 / count
    torch.testing.assert_close(buffer.sampler.probabilities(), expected)


def test_batches_of_a_cycle_are_uniform_over_the_newest_rows():
    buffer = filled_buffer(RecentSampler(0.7, 20, 6), 130, capacity=100, generator=seeded(0))
    for k in (1, 2, 3, 4, 5, 6, 1, 2):
        size = max(int(100 * 0.7**k), 20)
        assert_newest_rows(buffer, size)
        assert buffer.sampler.effective_sample_size() == pytest.approx(size)
        index, _ = buffer.sampler.sample(buffer.storage, 100_000)
        age = 129 - buffer.storage.get(index)["row"].numpy()
        assert_drawn_from(age, np.full(size, 1 / size))


@pytest.mark.parametrize("exponent", [0.3, 1, 2, 4.5])
@pytest.mark.parametrize("written", [7, 130])
def test_old_rows_are_drawn_by_their_position_in_the_order_of_writing(exponent, written):
    buffer = filled_buffer(OldSampler(exponent), written, capacity=100, generator=seeded(0))
    count = len(buffer)
    # P(⌊n u^exponent⌋ = k) by integrating over u on a fine grid.
    fine = (np.arange(2_000_000) + 0.5) / 2_000_000
    expected = np.bincount((count * fine**exponent).astype(int), minlength=count) / len(fine)
    position = (buffer.storage.get(slice(0, count))["row"] - (written - count)).numpy()
    found = buffer.sampler.probabilities().numpy()
    np.testing.assert_allclose(found, expected[position], atol=1e-6)
    index, _ = buffer.sampler.sample(buffer.storage, 1_000_000)
    assert_drawn_from(index.numpy(), found)


@pytest.mark.parametrize(("exponent", "favored"), [(0.01, 29), (100, 30)])
def test_extreme_exponents_draw_the_newest_or_the_oldest_row(exponent, favored):
    buffer = filled_buffer(OldSampler(exponent), 130, capacity=100, batch_size=10_000)
    index = buffer.sample()["index"]
    assert index.min() >= 0
    assert index.max() < 100
    assert (index == favored).float().mean() > 0.6


@settings(max_examples=30)
@given(st.lists(st.integers(1, 25), min_size=1, max_size=12), st.booleans(), st.integers(1, 3))
def test_any_sequence_of_writes(counts, by_one, width):
    """The newest of rows numbered in order are those with the largest numbers."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=RecentSampler(0.5, width, 100), batch_size=1
    )
    written = 0
    for count in counts:
        if by_one:
            for data in rows(written, count):
                buffer.add(data)
        else:
            buffer.extend(rows(written, count))
        written += count
        buffer.sample()
        buffer.sampler.load_state_dict(buffer.sampler.state_dict())
        k = buffer.sampler.state_dict()["position"] + 1
        assert_newest_rows(buffer, min(len(buffer), max(int(len(buffer) * 0.5**k), width)))


def test_writes_in_any_order_are_followed():
    buffer = filled_buffer(RecentSampler(0.5, 1, 10), 8, capacity=8)
    buffer.writer.write_at(torch.tensor([5, 2]), rows(8, 2))
    assert_newest_rows(buffer, 4)
    buffer.writer.write_at(torch.tensor([7]), rows(10, 1))
    assert_newest_rows(buffer, 4)
    buffer.extend(rows(11, 8))  # a full round restores the order of the slots
    assert_newest_rows(buffer, 4)


def test_rows_that_a_writer_rejects_are_not_new():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=RecentSampler(0.5, 1, 10),
        writer=TensorDictMaxValueWriter(rank_key="row"),
    )
    buffer.extend(rows(10, 4))
    buffer.extend(rows(0, 3))
    assert_newest_rows(buffer, 2)
    buffer.extend(rows(50, 1))  # replaces the lowest
    assert_newest_rows(buffer, 2)


@pytest.mark.parametrize("writes", [(4,), (4, 2), (3, 3, 3)])
def test_rows_of_a_storage_with_two_dimensions(writes):
    buffer = grid_buffer(RecentSampler(0.5, 1, 10), 5, 4)
    written = 0
    for count in writes:
        buffer.extend(grid(4 * written, count, 4))
        written += count
    assert_newest_rows(buffer, len(buffer) // 2)


def test_data_that_were_there_before_are_in_the_order_of_their_slots():
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(rows(0, 8)), sampler=RecentSampler(0.5, 1, 10), batch_size=300
    )
    assert set(buffer.sample()["row"].tolist()) == {4, 5, 6, 7}
    late = filled_buffer(RandomSampler(), 6, capacity=10)
    late.set_sampler(RecentSampler(0.5, 1, 10))
    late.extend(rows(6, 2))
    assert_newest_rows(late, 4)


def test_emptying_starts_a_cycle():
    buffer = filled_buffer(RecentSampler(0.5, 1, 10), 8, batch_size=4)
    buffer.sample()
    buffer.empty()
    buffer.extend(rows(20, 4))
    assert_newest_rows(buffer, 2)
