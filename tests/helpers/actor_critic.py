"""Small buffers with two samplers, and an assertion that two of them continue identically."""

import math
from functools import partial

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
)

from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler

CAPACITY = 32
BATCH = 8

per = partial(PrioritizedSampler, CAPACITY, alpha=0.7, beta=0.5)
CRITIC_SAMPLERS = {
    "uniform": RandomSampler,
    "per": per,
    "rank_per": RankPrioritizedSampler,
    "without_replacement": SamplerWithoutReplacement,
}
ACTOR_SAMPLERS = {
    "vmf_uncertainty": VMFSampler,
    "vmf_rank": partial(VMFSampler, "rank"),
    "uniform": RandomSampler,
    "per": per,
}


def rows(start, count):
    """Makes transitions whose entries are functions of their number; ten form a trajectory."""
    number = torch.arange(start, start + count)
    value = number[:, None].float()
    return TensorDict(
        {
            "number": number,
            "observation": value.repeat(1, 3),
            "action": -value,
            "trajectory": number // 10,
            "next": {"observation": value.repeat(1, 3) + 1, "reward": value / 2},
        },
        [count],
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(critic="uniform", actor="vmf_uncertainty", seed=0, storage=LazyTensorStorage, **kwargs):
    return ActorCriticReplayBuffer(
        storage=storage(CAPACITY),
        critic_sampler=CRITIC_SAMPLERS[critic](),
        actor_sampler=ACTOR_SAMPLERS[actor](),
        **{"batch_size": BATCH, "generator": generator(seed)} | kwargs,
    )


def factors(count, seed=0):
    return torch.rand(count, generator=generator(seed)) * (math.e - 1) + 1


def refresh_priorities(buffer, critic, actor, count, seed=0):
    """Gives the first slots distinct priorities, if the samplers accept priorities."""
    index = torch.arange(count)
    if "per" in critic:
        buffer.update_priority(index, factors(count, seed))
    if actor != "uniform":
        buffer.update_actor_priority(index, factors(count, seed + 1))


def used_buffer(critic="rank_per", actor="vmf_rank", **kwargs):
    buffer = make(critic, actor, **kwargs)
    buffer.extend(rows(0, 20))
    refresh_priorities(buffer, critic, actor, 20)
    buffer.extend(rows(20, 20))
    buffer.sample()
    buffer.sample_actor()
    buffer.synchronize()
    return buffer


def assert_equal(actual, expected):
    """Asserts that two batches agree in keys, values, types and shapes."""
    assert set(actual.keys(True, True)) == set(expected.keys(True, True))
    assert actual.batch_size == expected.batch_size
    for key in expected.keys(True, True):
        torch.testing.assert_close(
            actual[key], expected[key], rtol=0, atol=0, msg=lambda m, key=key: f"{key}: {m}"
        )


def assert_same_future(buffer, twin, rounds=4):
    """Asserts that two buffers draw, write and update identically from now on."""
    for step in range(rounds):
        # Prefetching threads draw in no fixed order, so each waits for the previous one.
        for one in (buffer, twin):
            one.synchronize()
        batch = buffer.sample()
        assert_equal(twin.sample(), batch)
        for one in (buffer, twin):
            one.synchronize()
        actor_batch = buffer.sample_actor()
        assert_equal(twin.sample_actor(), actor_batch)
        for one in (buffer, twin):
            one.extend(rows(1000 + 5 * step, 5))
            if "Prioritized" in type(one.critic_sampler).__name__:
                one.update_priority(batch["index"], factors(BATCH, step))
            if not isinstance(one.actor_sampler, RandomSampler):
                one.update_actor_priority(actor_batch["index"], factors(BATCH, step))
