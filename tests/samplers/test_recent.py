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
from torchrl_vmfer import ActorCriticReplayBuffer, OldSampler, RecentSampler


def newest_rows(buffer, count):
    """Sets the probabilities of the next batch against the rows, which are numbered in order."""
    probabilities = buffer.sampler.probabilities()
    stored = buffer.storage.get(slice(0, len(buffer)))["row"].flatten()
    expected = torch.zeros(len(stored), dtype=torch.float64)
    expected[stored.argsort(descending=True)[:count]] = 1 / count
    torch.testing.assert_close(probabilities, expected)


def test_batches_of_a_cycle_are_uniform_over_the_newest_rows():
    buffer = filled_buffer(RecentSampler(0.7, 20, 6), 130, capacity=100, generator=seeded(0))
    for k in (1, 2, 3, 4, 5, 6, 1, 2):
        size = max(int(100 * 0.7**k), 20)
        newest_rows(buffer, size)
        assert buffer.sampler.effective_sample_size() == pytest.approx(size)
        index, _ = buffer.sampler.sample(buffer.storage, 100_000)
        oldest = 130 - size
        drawn = buffer.storage.get(index)["row"].numpy() - oldest
        assert_drawn_from(drawn, np.full(size, 1 / size))


def test_a_small_buffer_is_drawn_uniformly():
    buffer = filled_buffer(RecentSampler(), 10, batch_size=500)
    for _ in range(3):
        newest_rows(buffer, 10)
        assert len(buffer.sample()["index"].unique()) == 10


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


def test_an_exponent_of_one_is_uniform_and_others_prefer_one_end():
    buffer = filled_buffer(OldSampler(1.0), 130, capacity=100)
    np.testing.assert_allclose(buffer.sampler.probabilities(), np.full(100, 0.01))
    oldest = 30  # the slot that is overwritten next
    for exponent, favored in ((0.01, oldest - 1), (100, oldest)):
        sampler = OldSampler(exponent)
        sampler.load_state_dict(buffer.sampler.state_dict() | {"exponent": exponent})
        assert sampler.probabilities().argmax() == favored
        assert (sampler.sample(buffer.storage, 10_000)[0] == favored).float().mean() > 0.6


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
        newest_rows(buffer, min(len(buffer), max(int(len(buffer) * 0.5**k), width)))


def test_writes_in_any_order_are_followed():
    buffer = filled_buffer(RecentSampler(0.5, 1, 10), 8, capacity=8)
    buffer.writer.write_at(torch.tensor([5, 2]), rows(8, 2))
    newest_rows(buffer, 4)
    buffer.writer.write_at(torch.tensor([7]), rows(10, 1))
    newest_rows(buffer, 4)
    buffer.extend(rows(11, 8))  # a full round restores the order of the slots
    newest_rows(buffer, 4)


def test_rows_that_a_writer_rejects_are_not_new():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=RecentSampler(0.5, 1, 10),
        writer=TensorDictMaxValueWriter(rank_key="row"),
    )
    buffer.extend(rows(10, 4))
    buffer.extend(rows(0, 3))
    newest_rows(buffer, 2)
    buffer.extend(rows(50, 1))  # replaces the lowest
    newest_rows(buffer, 2)


@pytest.mark.parametrize("writes", [(4,), (4, 2), (3, 3, 3)])
def test_rows_of_a_storage_with_two_dimensions(writes):
    buffer = grid_buffer(RecentSampler(0.5, 1, 10), 5, 4)
    written = 0
    for count in writes:
        buffer.extend(grid(4 * written, count, 4))
        written += count
    newest_rows(buffer, len(buffer) // 2)


def test_data_that_were_there_before_are_in_the_order_of_their_slots():
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(rows(0, 8)), sampler=RecentSampler(0.5, 1, 10), batch_size=300
    )
    assert set(buffer.sample()["row"].tolist()) == {4, 5, 6, 7}
    late = filled_buffer(RandomSampler(), 6, capacity=10)
    late.set_sampler(RecentSampler(0.5, 1, 10))
    late.extend(rows(6, 2))
    newest_rows(late, 4)


def test_emptying_starts_a_cycle():
    buffer = filled_buffer(RecentSampler(0.5, 1, 10), 8, batch_size=4)
    buffer.sample()
    buffer.empty()
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()
    buffer.extend(rows(20, 4))
    newest_rows(buffer, 2)


@pytest.mark.parametrize("by_file", [False, True])
def test_a_resumed_buffer_continues_within_the_cycle(by_file, tmp_path):
    def make():
        return ActorCriticReplayBuffer(
            storage=LazyTensorStorage(10),
            actor_sampler=RecentSampler(0.6, 2, 4),
            batch_size=16,
            generator=seeded(3),
        )

    buffer, twin = make(), make()
    buffer.extend(rows(0, 14))
    for _ in range(6):
        buffer.sample_actor()
    if by_file:
        buffer.dumps(tmp_path)
        twin.loads(tmp_path)
    else:
        twin.load_state_dict(buffer.state_dict())
    for step in range(6):
        assert torch.equal(buffer.sample_actor()["row"], twin.sample_actor()["row"])
        for each in (buffer, twin):
            each.extend(rows(14 + step, 1))


@pytest.mark.parametrize(
    ("entry", "bad", "message"),
    [
        ("position", 10, "position of the state is 10"),
        ("position", None, "position of the state is None"),
        ("written", torch.ones(3), "written of the state"),
        ("decay", 0.9, r"saved with decay=0\.9, but this sampler has decay=0\.5"),
        ("cycle", 11, "saved with cycle=11"),
    ],
)
def test_a_bad_state_is_rejected_and_changes_nothing(entry, bad, message):
    sampler = filled_buffer(RecentSampler(0.5, 1, 10)).sampler
    before = sampler.probabilities()
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(sampler.state_dict() | {entry: bad})
    assert torch.equal(sampler.probabilities(), before)
