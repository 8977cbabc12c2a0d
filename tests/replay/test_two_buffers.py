"""TorchRL's own pattern: two plain replay buffers on one storage and one writer."""

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

CAPACITY = 24
BATCH = 16

each_mode = pytest.mark.parametrize("mode", ["uncertainty", "rank"])


def rows(start, count):
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "observation": number[:, None].float()}, [count])


def make_pair(mode="uncertainty", critic_sampler=RandomSampler, storage=None, seed=0):
    shared = {
        "storage": LazyTensorStorage(CAPACITY) if storage is None else storage,
        "writer": TensorDictRoundRobinWriter(),
        # The second buffer sets the storage's generator, from which uniform samplers draw.
        "generator": torch.Generator().manual_seed(seed),
        "batch_size": BATCH,
    }
    critic = TensorDictReplayBuffer(sampler=critic_sampler(), **shared)
    actor = TensorDictReplayBuffer(sampler=VMFSampler(mode), **shared)
    return critic, actor


def factors(count, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) * (math.e - 1) + 1


def stored_factors(buffer):
    return buffer.sampler.state_dict()["priorities"]


@each_mode
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
@pytest.mark.parametrize("critic_sampler", [RandomSampler, RankPrioritizedSampler])
def test_writes_through_the_first_are_drawn_through_the_second(mode, storage, critic_sampler):
    critic, actor = make_pair(mode, critic_sampler, storage(CAPACITY))
    last = {}
    for start in range(0, 60, 5):
        critic.extend(rows(start, 5))
        last.update({number % CAPACITY: number for number in range(start, start + 5)})
        assert len(actor) == len(critic) == len(last)
        assert actor.write_count == critic.write_count == start + 5
        batch = actor.sample(400)
        assert batch["number"].tolist() == [last[slot] for slot in batch["index"].tolist()]
        # All priorities are equal: one of at most 24 slots is missed with probability
        # 24 * (23/24)^400 < 1e-6 at each of the 12 rounds.
        assert set(batch["index"].tolist()) == set(last)
    factor = factors(CAPACITY)
    actor.update_priority(torch.arange(CAPACITY), factor)
    critic.extend(rows(60, 4))  # slots 12 to 15
    assert stored_factors(actor)[12:16].tolist() == [1.0] * 4
    assert torch.equal(stored_factors(actor)[16:], factor[16:])


@each_mode
@pytest.mark.parametrize(
    "critic_sampler",
    [RandomSampler, RankPrioritizedSampler, lambda: PrioritizedSampler(CAPACITY, 0.7, 0.5)],
    ids=["uniform", "rank_per", "per"],
)
def test_a_checkpoint_restores_both(mode, critic_sampler, tmp_path):
    critic, actor = make_pair(mode, critic_sampler)
    critic.extend(rows(0, 30))
    index = torch.arange(CAPACITY)
    actor.update_priority(index, factors(CAPACITY))
    if critic_sampler is not RandomSampler:
        critic.update_priority(index, factors(CAPACITY, 1))
    Checkpoint(replay_buffer=critic, vmf_sampler=actor.sampler).save(tmp_path / "checkpoint")

    critic_twin, actor_twin = make_pair(mode, critic_sampler, seed=99)
    result = Checkpoint(replay_buffer=critic_twin, vmf_sampler=actor_twin.sampler).load(
        tmp_path / "checkpoint"
    )
    assert result.loaded == {"replay_buffer", "vmf_sampler"}
    assert len(actor_twin) == len(critic_twin) == CAPACITY
    assert torch.equal(stored_factors(actor_twin), factors(CAPACITY))
    # The first buffer restores its own generator; the second must draw from the same one.
    actor_twin.set_rng(critic_twin._rng)
    for start in (100, 110):
        for a, b in ((critic, critic_twin), (actor, actor_twin)):
            expected, found = a.sample(), b.sample()
            assert torch.equal(found["index"], expected["index"])
            assert torch.equal(found["number"], expected["number"])
        for one in (critic, critic_twin):
            one.extend(rows(start, 5))
