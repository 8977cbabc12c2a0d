"""The fast storage and writer store the same data as TorchRL's."""

from __future__ import annotations

import weakref
from functools import partial
from operator import eq

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from torchrl.envs import RenameTransform

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    HindsightReplayBuffer,
    RankPrioritizedSampler,
    VMFSampler,
)
from torchrl_vmfer.compiled.rows import RowStorage, RowWriter, extend

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


def test_rows_of_another_type_are_converted(buffers):
    buffer, other = buffers[0], rows(2, 1)
    buffer.extend(rows(3, 0))
    expected = other.clone()
    other["observation"] = other["observation"].double()
    other["next", "done"] = other["next", "done"].to(torch.uint8)
    buffer.extend(other)
    stored = buffer.storage[:][3:5]
    assert (stored == expected.select(*stored.keys(True, True))).all()


def test_a_missing_entry_is_an_error(buffers):
    buffer = buffers[0]
    buffer.extend(rows(3, 0))
    with pytest.raises(KeyError, match="observation"):
        buffer.extend(rows(1, 1).exclude("observation"))


# --- The function that replaces `extend`.

KINDS = {
    "vmf": (ActorCriticReplayBuffer, {}),
    "ranks": (
        ActorCriticReplayBuffer,
        {
            "critic_sampler": RankPrioritizedSampler,
            "actor_sampler": lambda: VMFSampler("rank"),
        },
    ),
    "generations": (
        ActorCriticReplayBuffer,
        {"writer": lambda: RowWriter(track_generations=True)},
    ),
    "hindsight": (HindsightReplayBuffer, {"reward_fn": lambda achieved, desired: -achieved[:, 0]}),
    "torchrl": (
        ActorCriticReplayBuffer,
        {"storage": partial(LazyTensorStorage, CAPACITY), "writer": TensorDictRoundRobinWriter},
    ),
}


def made(kind):
    make, options = KINDS[kind]
    parts = {"storage": partial(RowStorage, CAPACITY), "writer": RowWriter} | options
    generator = torch.Generator().manual_seed(0)
    buffer = make(batch_size=16, generator=generator, **parts)
    buffer.drop_transform()
    return buffer


def transition(seed):
    found = rows(1, seed)
    found["desired_goal"] = torch.full((1, 2), float(seed))
    found["next", "achieved_goal"] = torch.full((1, 2), -float(seed))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_extend_leaves_a_buffer_in_the_same_state(kind):
    ours, theirs = made(kind), made(kind)
    same = transition(0)  # a collector overwrites the same transition
    for seed in range(25):
        same.update_(transition(seed))
        extend(ours, same)
        theirs.extend(transition(seed))
        if seed % 5 == 4:
            for method in ("sample", "sample_actor"):
                found, expected = (getattr(buffer, method)() for buffer in (ours, theirs))
                assert set(found.keys(True, True)) == set(expected.keys(True, True))
                assert (found == expected).all()
            for buffer in (ours, theirs):
                buffer.update_actor_priority(torch.arange(4), torch.linspace(1, 2, 4))
    for part in ("writer", "actor_sampler"):
        found, expected = (getattr(buffer, part).state_dict() for buffer in (ours, theirs))
        assert found.keys() == expected.keys()
        for key, value in found.items():
            same = torch.equal if isinstance(value, torch.Tensor) else eq
            assert same(value, expected[key])


def test_a_large_batch_does_not_stay_in_memory():
    buffer = made("ranks")
    extend(buffer, rows(1, 0))
    batch = rows(4, 1)
    observation = weakref.ref(batch["observation"])
    extend(buffer, batch)
    del batch
    assert observation() is None


def test_extend_applies_transforms():
    transform = RenameTransform(["x"], ["observation"], ["observation"], ["x"])
    buffer = ActorCriticReplayBuffer(
        storage=RowStorage(CAPACITY), writer=RowWriter(), batch_size=4, transform=transform
    )
    data = rows(1, 0).rename_key_("observation", "x")
    extend(buffer, data)
    extend(buffer, data)
    assert len(buffer) == 2
    assert buffer.storage[:]["observation"].shape == (2, 3)


def test_extend_calls_the_method_of_a_subclass():
    class Own(ActorCriticReplayBuffer):
        calls = 0

        def extend(self, *args, **kwargs):
            self.calls += 1
            return super().extend(*args, **kwargs)

    buffer = Own(storage=RowStorage(CAPACITY), writer=RowWriter(), batch_size=4)
    for seed in range(3):
        extend(buffer, rows(1, seed))
    assert buffer.calls == len(buffer) == 3
