"""The fast storage and writer store the same data as TorchRL's."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter

from torchrl_vmfer.fast.storage import RowStorage, RowWriter

CAPACITY = 10


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    following = {
        "reward": torch.rand(count, 1, generator=generator),
        "done": torch.rand(count, 1, generator=generator) > 0.5,
    }
    data = {"observation": torch.rand(count, 3, generator=generator)}
    return TensorDict({**data, "next": TensorDict(following, [count])}, [count])


@pytest.fixture
def buffers():
    return [
        TensorDictReplayBuffer(
            storage=storage(CAPACITY),
            writer=writer(),
            batch_size=32,
            generator=torch.Generator().manual_seed(0),
        )
        for storage, writer in (
            (RowStorage, RowWriter),
            (LazyTensorStorage, TensorDictRoundRobinWriter),
        )
    ]


@pytest.mark.parametrize("sizes", [[1] * 25, [3, 1, 4, 1, 5], [10, 1, 10], [7, 7, 7]], ids=str)
def test_same_rows_slots_and_samples(buffers, sizes):
    for seed, size in enumerate(sizes):
        ours, theirs = (buffer.extend(rows(size, seed)) for buffer in buffers)
        assert torch.equal(ours, theirs)
        assert len(buffers[0]) == len(buffers[1])
        assert buffers[0].write_count == buffers[1].write_count
        assert buffers[0].writer._cursor == buffers[1].writer._cursor
        sample, expected = (buffer.sample() for buffer in buffers)
        assert (sample == expected.select(*sample.keys(True, True))).all()
        assert set(expected.keys(True, True)) == set(sample.keys(True, True))


def test_overwriting_the_source_does_not_change_stored_transitions(buffers):
    buffer, transition = buffers[0], rows(1, 0)
    expected = transition.clone()
    buffer.extend(transition)
    transition["observation"].zero_()
    transition["next", "reward"].zero_()
    buffer.extend(transition)
    assert torch.equal(buffer.storage[:1]["observation"], expected["observation"])
    assert torch.equal(buffer.storage[:1]["next", "reward"], expected["next", "reward"])


def test_state_is_loaded(buffers):
    buffer = buffers[0]
    buffer.extend(rows(14, 0))
    other = TensorDictReplayBuffer(storage=RowStorage(CAPACITY), writer=RowWriter(), batch_size=4)
    other.extend(rows(1, 9))
    other.load_state_dict(buffer.state_dict())
    slots = torch.arange(CAPACITY)
    assert (other.storage.get(slots) == buffer.storage.get(slots)).all()
    other.extend(rows(1, 5))
    assert torch.equal(
        other.storage.get(torch.tensor([4]))["observation"], rows(1, 5)["observation"]
    )
