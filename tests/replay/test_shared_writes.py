"""Slots that were overwritten after sampling, and slots that other processes write."""

import multiprocessing
import os
import signal
import sys
import types
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictRoundRobinWriter,
)

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    HindsightReplayBuffer,
    RankPrioritizedSampler,
    VMFSampler,
)
from torchrl_vmfer.replay.shared_writes import WriteLock

CAPACITY = 16


def rows(count, start=0):
    return TensorDict({"observation": torch.arange(start, start + count).float()}, [count])


def make_buffer(critic=RandomSampler, actor=VMFSampler, ndim=1, **kwargs):
    return ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, ndim=ndim),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        critic_sampler=critic(),
        actor_sampler=actor(),
        batch_size=64,
        **kwargs,
    )


def priorities(sampler):
    if isinstance(sampler, PrioritizedSampler):
        return torch.as_tensor(sampler._sum_tree[torch.arange(CAPACITY)])
    return sampler.state_dict()["priorities"]


def in_another_process(function):
    """Runs a function in a forked process and waits for it to end."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join(30)
    assert process.exitcode == 0


def shared(buffer, filled=CAPACITY):
    buffer.extend(rows(filled))
    buffer.storage[:].share_memory_()
    buffer.share()
    return buffer


# --- Generations.


@pytest.mark.parametrize(
    "critic", [RankPrioritizedSampler, partial(PrioritizedSampler, CAPACITY, 1.0, 1.0, eps=0.0)]
)
def test_a_slot_overwritten_after_sampling_does_not_get_the_old_priority(critic):
    buffer, reference = make_buffer(critic), make_buffer(critic)
    for each in (buffer, reference):
        each.extend(rows(CAPACITY))
        each.update_priority(torch.arange(CAPACITY), torch.full((CAPACITY,), 3.0))
    index = torch.arange(10)
    generation = buffer.writer.generations_of(index)
    for each in (buffer, reference):
        each.extend(rows(5))
    buffer.update_priority(index, torch.full((10,), 2.0), generation)
    reference.update_priority(index[5:], torch.full((5,), 2.0))
    ours, theirs = (priorities(each.critic_sampler) for each in (buffer, reference))
    assert torch.equal(ours, theirs)
    assert (ours[5:10] < ours[10]).all()


def test_all_rows_may_be_overwritten_and_one_factor_may_apply_to_all():
    buffer = make_buffer(ndim=2)
    data = TensorDict({"observation": torch.zeros(2, 8)}, [2, 8])  # time comes second
    buffer.extend(data)
    batch = buffer.sample_actor()
    buffer.extend(data[:, :4])
    buffer.update_actor_priority(batch["index"], 2.0, batch["index_generation"])
    factors = priorities(buffer.actor_sampler).reshape(8, 2)
    assert (factors[:4] == 1).all()
    assert set(factors[4:].unique().tolist()) <= {1.0, 2.0}
    assert (factors[4:] == 2).any()
    buffer.extend(data)
    buffer.update_actor_priority(batch["index"], 2.0, batch["index_generation"])
    assert (priorities(buffer.actor_sampler) == 1).all()


# --- Other processes.


@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
@pytest.mark.parametrize(
    ("filled", "written"),
    [(CAPACITY, 5), (CAPACITY, CAPACITY), (CAPACITY, 3 * CAPACITY + 2), (6, 4), (6, 13), (6, 30)],
    ids=lambda count: str(count),
)
def test_writes_of_another_process_are_new_to_both_samplers(mode, filled, written):
    buffer = shared(make_buffer(RankPrioritizedSampler, partial(VMFSampler, mode)), filled)
    reference = make_buffer(RankPrioritizedSampler, partial(VMFSampler, mode))
    reference.extend(rows(filled))
    scored = torch.arange(filled)
    for each in (buffer, reference):
        each.update_actor_priority(scored, 1.5 + scored / 100)
        each.update_priority(scored, 2.0 + scored)

    def write():
        for start in range(0, written, 3):
            buffer.extend(rows(min(3, written - start), 100 + start))

    in_another_process(write)
    for start in range(0, written, 3):
        reference.extend(rows(min(3, written - start), 100 + start))
    buffer.sample_actor()
    assert len(buffer) == len(reference) == min(CAPACITY, filled + written)
    assert buffer.write_count == filled + written
    assert torch.equal(buffer[:]["observation"], reference[:]["observation"])
    for name in ("actor_sampler", "critic_sampler"):
        ours, theirs = getattr(buffer, name), getattr(reference, name)
        assert torch.equal(priorities(ours), priorities(theirs))
        assert torch.equal(ours.probabilities(), theirs.probabilities())


@pytest.mark.parametrize("way", ["index", "batch", "generation", "tensordict"])
def test_a_shared_buffer_counts_generations_by_default(way):
    """For all ways to return factors, with TorchRL's default writer."""
    buffer = shared(
        ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=64), CAPACITY
    )
    batch = buffer.sample_actor()
    in_another_process(lambda: buffer.extend(rows(2)))
    buffer.extend(rows(2))
    factor = 2 + batch["index"] / 100
    if way == "index":
        buffer.update_actor_priority(batch["index"], factor)
    elif way == "batch":
        buffer.sample_actor()
        buffer.update_actor_priority(batch, factor)
    elif way == "generation":
        buffer.sample_actor()
        buffer.update_actor_priority(batch["index"], factor, batch["index_generation"])
    else:
        buffer.update_tensordict_priority(batch.set("vmf_factor", factor))
    kept = batch["index"] >= 4
    expected = torch.ones(CAPACITY)
    expected[batch["index"][kept]] = factor[kept]
    torch.testing.assert_close(priorities(buffer.actor_sampler), expected)


def test_only_shared_buffers_count_generations():
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=4)
    buffer.extend(rows(4))
    assert "index_generation" not in buffer.sample_actor()
    buffer.share()
    assert "index_generation" in buffer.sample_actor()
    assert "index_generation" in buffer.sample()
    built_shared = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), shared=True)
    assert built_shared.writer.tracks_generations


def test_a_pool_and_a_saved_state_include_writes_of_another_process():
    buffer = shared(make_buffer())
    buffer.update_actor_priority(torch.arange(CAPACITY), 2.0)
    in_another_process(lambda: buffer.extend(rows(4)))
    CandidatePool(buffer, size=8, score=lambda batch: torch.ones(8)).sample(4)
    expected = torch.tensor([1.0] * 4 + [2.0] * 12)
    assert torch.equal(priorities(buffer.actor_sampler), expected)
    in_another_process(lambda: buffer.extend(rows(4)))
    expected[4:8] = 1
    copy = shared(make_buffer())
    copy.load_state_dict(buffer.state_dict())
    copy.sample_actor()
    assert torch.equal(priorities(copy.actor_sampler), expected)


def test_a_process_that_dies_while_it_writes_does_not_hang_the_others(monkeypatch):
    monkeypatch.setattr(WriteLock, "timeout", 1)
    buffer = shared(make_buffer())

    def die():
        with buffer.process_lock:
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join(30)
    with pytest.raises(RuntimeError, match=r"locked for 1 s"):
        buffer.sample()


def test_hindsight_in_several_processes_requires_trajectory_numbers():
    def goal_rows(**entries):
        after = {"achieved_goal": torch.zeros(4, 1), "reward": torch.zeros(4, 1)}
        after["done"] = torch.zeros(4, 1, dtype=torch.bool)
        return TensorDict({"desired_goal": torch.zeros(4, 1), "next": after, **entries}, [4])

    def make(data):
        buffer = HindsightReplayBuffer(
            storage=LazyTensorStorage(8),
            batch_size=4,
            reward_fn=lambda achieved, desired: torch.zeros(len(achieved)),
        )
        buffer.extend(data)
        return buffer.share()

    with pytest.raises(ValueError, match="trajectory_key"):
        make(goal_rows()).sample()
    make(goal_rows(collector={"traj_ids": torch.tensor([0, 1, 0, 1])})).sample()


def test_a_folder_named_ray_is_not_mistaken_for_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    buffer.extend(TensorDict({"observation": torch.zeros(4, 1)}, [4]))
    assert len(buffer.sample_actor()) == 2
