"""Priorities follow writes by every TorchRL writer, through other buffers, and after emptying."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    RandomSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

from helpers.sampler_buffers import (
    EVERY,
    assert_priorities,
    distinct_priorities,
    filled_buffer,
    rows,
)


def test_write_at_resets_the_given_slots(make_sampler):
    buffer = filled_buffer(make_sampler())
    priorities = distinct_priorities(10)
    buffer.update_priority(torch.arange(10), priorities)
    buffer.writer.write_at(torch.tensor([7, 2]), rows(50, 2))
    priorities[[7, 2]] = buffer.sampler.default_priority
    assert_priorities(buffer.sampler, priorities)


def test_rows_rejected_by_a_max_value_writer_do_not_change_priorities(make_sampler):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=make_sampler(),
        writer=TensorDictMaxValueWriter(rank_key="row"),
        priority_key="factor",
        batch_size=32,
    )
    priorities = torch.tensor([1.5, 2.5, 2.0, 1.25])
    buffer.extend(rows(10, 4).set("factor", priorities))
    assert buffer.add(rows(0, 1)[0]) is None
    assert (buffer.extend(rows(3, 2)) == -1).all()
    assert_priorities(buffer.sampler, priorities)
    # Row 50 replaces the lowest, row 10 in slot 0. Row 5 is rejected.
    index = buffer.extend(TensorDict({"row": torch.tensor([5, 50])}, [2]))
    assert index.tolist() == [-1, 0]
    priorities[0] = buffer.sampler.default_priority
    assert_priorities(buffer.sampler, priorities)
    assert set(buffer.sample()["row"].tolist()) <= {50, 11, 12, 13}
    # Priorities of rejected rows are skipped.
    factor = torch.tensor([2.25, 1.75])
    buffer.extend(TensorDict({"row": torch.tensor([4, 60]), "factor": factor}, [2]))
    priorities[1] = 1.75
    assert_priorities(buffer.sampler, priorities)


@pytest.mark.parametrize("writer", [ImmutableDatasetWriter, TensorDictRoundRobinWriter])
def test_data_that_were_there_before_have_the_default_priority(make_sampler, writer):
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(rows(0, 6)), sampler=make_sampler(), writer=writer(), batch_size=32
    )
    buffer.update_priority(torch.tensor([2, 4]), torch.tensor([2.0, 1.5]))
    assert_priorities(buffer.sampler, [1.0, 1.0, 2.0, 1.0, 1.5, 1.0])
    assert torch.equal(*buffer.sample().select("row", "index").values())


def test_a_sampler_may_be_set_for_a_used_buffer(make_sampler):
    buffer = filled_buffer(RandomSampler(), 7, batch_size=16)
    buffer.set_sampler(make_sampler())
    assert buffer.sample()["index"].max() < 7
    buffer.extend(rows(7, 1))
    assert_priorities(buffer.sampler, [1.0] * 8)
    buffer.set_sampler(make_sampler())
    buffer.update_priority(torch.tensor([1]), torch.tensor([2.5]))
    assert_priorities(buffer.sampler, [1.0, 2.5, *[1.0] * 6])


@pytest.fixture
def two_buffers(make_sampler):
    """A writing buffer and a reading one, on one storage and writer."""
    storage, writer = LazyTensorStorage(10), TensorDictRoundRobinWriter()
    other = TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=4)
    buffer = TensorDictReplayBuffer(
        storage=storage, writer=writer, sampler=make_sampler(), batch_size=64
    )
    other.extend(rows(0, 8))
    buffer.update_priority(torch.arange(8), distinct_priorities(8))
    buffer.sample()
    return other, buffer


def test_writes_through_another_buffer_reset_the_slots(two_buffers):
    other, buffer = two_buffers
    other.extend(rows(8, 5))
    default = torch.tensor([buffer.sampler.default_priority])
    priorities = torch.cat([default.expand(3), distinct_priorities(8)[3:], default.expand(2)])
    assert_priorities(buffer.sampler, priorities)


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("refill", [1, 3, 8, 10])
def test_another_buffer_may_empty_and_refill_the_storage(two_buffers, refill, is_noticed):
    other, buffer = two_buffers
    other.empty()
    if is_noticed:
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            buffer.sample()
    other.extend(rows(50, refill))
    assert_priorities(buffer.sampler, [1.0] * refill, buffer.storage)
    assert set(buffer.sample()["row"].tolist()) <= set(range(50, 50 + refill))


@pytest.mark.parametrize("saved", [3, 10])
def test_another_buffer_may_load_the_storage(two_buffers, tmp_path, saved):
    other, buffer = two_buffers
    filled_buffer(RandomSampler(), saved).dumps(tmp_path)
    other.loads(tmp_path)
    batch = buffer.sample()
    assert torch.equal(batch["row"], batch["index"])
    assert batch["index"].max() < saved
    assert len(buffer.sampler.probabilities()) == saved


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_buffer_cannot_be_sampled_and_is_used_again(name):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=EVERY[name](), batch_size=64
    )
    for first in (0, 20):
        assert not buffer.sampler.can_sample(buffer.storage, 4)
        with pytest.raises(RuntimeError, match=r"Cannot sample from an empty storage\."):
            buffer.sample()
        if name != "pool":
            assert len(buffer.sampler.probabilities()) == 0
        buffer.extend(rows(first, 3))
        assert buffer.sampler.default_priority == 1.0
        assert buffer.sampler.can_sample(buffer.storage, 4)
        assert set(buffer.sample()["row"].tolist()) <= set(range(first, first + 3))
        if buffer.sampler.signal:
            buffer.update_priority(torch.arange(3), torch.tensor([1.5, 2.0, 2.5]))
        buffer.empty()
