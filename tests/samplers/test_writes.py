"""Priorities follow writes by every TorchRL writer, through other buffers, and after emptying."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    RandomSampler,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

from helpers.sampler_buffers import assert_priorities, distinct_priorities, filled_buffer, rows


class TestWriters:
    @pytest.mark.parametrize("writer_class", [RoundRobinWriter, TensorDictRoundRobinWriter])
    def test_writers_with_generations_return_the_generation_of_each_sample(
        self, make_sampler, writer_class
    ):
        buffer = filled_buffer(
            make_sampler(), writer=writer_class(track_generations=True), batch_size=32
        )
        index = torch.arange(10)
        buffer.update_priority(index, distinct_priorities(10))
        buffer.extend(rows(10, 4))
        batch = buffer.sample()
        assert torch.equal(batch["index_generation"], (batch["index"] < 4).long())
        fresh = torch.full((4,), buffer.sampler.default_priority)
        assert_priorities(buffer.sampler, torch.cat([fresh, distinct_priorities(10)[4:]]))

    def test_write_at_resets_the_given_slots(self, make_sampler):
        buffer = filled_buffer(make_sampler())
        priorities = distinct_priorities(10)
        buffer.update_priority(torch.arange(10), priorities)
        buffer.writer.write_at(torch.tensor([7, 2]), rows(50, 2))
        priorities[[7, 2]] = buffer.sampler.default_priority
        assert_priorities(buffer.sampler, priorities)

    def test_rows_rejected_by_a_max_value_writer_do_not_change_priorities(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4),
            sampler=make_sampler(),
            writer=TensorDictMaxValueWriter(rank_key="row"),
            batch_size=32,
        )
        buffer.extend(rows(10, 4))
        priorities = torch.tensor([1.5, 2.5, 2.0, 1.25])
        buffer.update_priority(torch.arange(4), priorities)

        assert buffer.add(rows(0, 1)[0]) is None
        assert_priorities(buffer.sampler, priorities)
        assert (buffer.extend(rows(3, 2)) == -1).all()
        assert_priorities(buffer.sampler, priorities)

        # Row 50 replaces the lowest, row 10 in slot 0. Row 5 is rejected.
        index = buffer.extend(TensorDict({"row": torch.tensor([5, 50])}, [2]))
        assert index.tolist() == [-1, 0]
        priorities[0] = buffer.sampler.default_priority
        assert_priorities(buffer.sampler, priorities)
        assert set(buffer.sample()["row"].tolist()) <= {50, 11, 12, 13}

    def test_priorities_of_rejected_rows_are_skipped(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4),
            sampler=make_sampler(),
            writer=TensorDictMaxValueWriter(rank_key="row"),
            priority_key="factor",
        )
        data = rows(10, 4).set("factor", torch.tensor([1.5, 2.5, 2.0, 1.25]))
        buffer.extend(data)
        buffer.extend(
            TensorDict({"row": torch.tensor([5, 50]), "factor": torch.tensor([2.25, 1.75])}, [2])
        )
        assert_priorities(buffer.sampler, [1.75, 2.5, 2.0, 1.25])

    def test_a_read_only_dataset_can_be_sampled(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=TensorStorage(rows(0, 6)),
            sampler=make_sampler(),
            writer=ImmutableDatasetWriter(),
            batch_size=32,
        )
        batch = buffer.sample()
        assert torch.equal(batch["row"], batch["index"])
        buffer.update_priority(torch.tensor([2, 4]), torch.tensor([2.0, 1.5]))
        assert_priorities(buffer.sampler, [1.0, 1.0, 2.0, 1.0, 1.5, 1.0])


class TestStorageChangedBehindTheSampler:
    def test_existing_data_have_the_default_priority(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=TensorStorage(rows(0, 6)), sampler=make_sampler(), batch_size=16
        )
        buffer.update_priority(torch.tensor([5]), torch.tensor([2.0]))
        assert_priorities(buffer.sampler, [1.0] * 5 + [2.0])
        assert torch.equal(*buffer.sample().select("row", "index").values())

    def test_set_sampler_works_for_a_used_buffer(self, make_sampler):
        buffer = filled_buffer(RandomSampler(), 7, batch_size=16)
        buffer.set_sampler(make_sampler())
        assert buffer.sample()["index"].max() < 7
        assert_priorities(buffer.sampler, [1.0] * 7)
        buffer.extend(rows(7, 1))
        assert_priorities(buffer.sampler, [1.0] * 8)

    def test_priorities_may_be_given_before_the_first_sample(self, make_sampler):
        buffer = filled_buffer(RandomSampler(), 3)
        buffer.set_sampler(make_sampler())
        buffer.update_priority(torch.tensor([1]), torch.tensor([2.5]))
        assert_priorities(buffer.sampler, [1.0, 2.5, 1.0])

    @pytest.fixture
    def two_buffers(self, make_sampler):
        """A writing buffer and a reading one, on one storage and writer."""
        storage, writer = LazyTensorStorage(10), TensorDictRoundRobinWriter()
        other = TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=4)
        buffer = TensorDictReplayBuffer(
            storage=storage, writer=writer, sampler=make_sampler(), batch_size=64
        )
        other.extend(rows(0, 8))
        buffer.update_priority(torch.arange(8), distinct_priorities(8))
        return other, buffer

    def test_writes_through_another_buffer_reset_the_slots(self, two_buffers):
        other, buffer = two_buffers
        other.extend(rows(8, 5))
        default = torch.tensor([buffer.sampler.default_priority])
        priorities = torch.cat([default.expand(3), distinct_priorities(8)[3:], default.expand(2)])
        assert_priorities(buffer.sampler, priorities)

    @pytest.mark.parametrize("refill", [1, 3, 8, 10])
    def test_another_buffer_may_empty_and_refill_the_storage(self, two_buffers, refill):
        other, buffer = two_buffers
        buffer.sample()
        other.empty()
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            buffer.sample()
        other.extend(rows(50, refill))
        batch = buffer.sample()
        assert set(batch["row"].tolist()) <= set(range(50, 50 + refill))
        assert_priorities(buffer.sampler, [1.0] * refill)

    @pytest.mark.parametrize("refill", [1, 3, 8, 10])
    def test_a_storage_refilled_between_two_samples_is_detected(self, two_buffers, refill):
        other, buffer = two_buffers
        buffer.sample()
        other.empty()
        other.extend(rows(50, refill))
        batch = buffer.sample()
        assert set(batch["row"].tolist()) <= set(range(50, 50 + refill))
        assert_priorities(buffer.sampler, [1.0] * refill, buffer.storage)

    @pytest.mark.parametrize("saved", [3, 10])
    def test_another_buffer_may_load_the_storage(self, two_buffers, tmp_path, saved):
        other, buffer = two_buffers
        filled_buffer(RandomSampler(), saved).dumps(tmp_path)
        buffer.sample()
        other.loads(tmp_path)
        batch = buffer.sample()
        assert torch.equal(batch["row"], batch["index"])
        assert batch["index"].max() < saved
        assert len(buffer.sampler.probabilities()) == saved

    def test_probabilities_can_be_synchronized_with_the_storage(self, two_buffers):
        other, buffer = two_buffers
        other.empty()
        other.extend(rows(0, 2))
        assert_priorities(buffer.sampler, [1.0, 1.0], buffer.storage)


class TestEmpty:
    def test_an_empty_buffer_cannot_be_sampled(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=make_sampler(), batch_size=4
        )
        with pytest.raises(RuntimeError, match=r"Cannot sample from an empty storage\."):
            buffer.sample()
        assert buffer.sampler.probabilities().shape == (0,)

    def test_previous_priorities_are_discarded(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=64)
        buffer.update_priority(torch.arange(10), distinct_priorities(10))
        buffer.sample()
        buffer.empty()
        assert buffer.sampler.probabilities().shape == (0,)
        with pytest.raises(RuntimeError, match="empty storage"):
            buffer.sample()
        buffer.extend(rows(20, 3))
        assert buffer.sampler.default_priority == 1.0
        assert_priorities(buffer.sampler, [1.0] * 3)
        assert set(buffer.sample()["row"].tolist()) <= {20, 21, 22}
