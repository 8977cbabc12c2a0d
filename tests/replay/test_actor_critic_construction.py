"""Construction of a buffer with two samplers: instances, factories, delayed, on existing data."""

from functools import partial

import pytest
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer

from helpers.actor_critic import (
    ACTOR_SAMPLERS,
    CAPACITY,
    assert_same_future,
    generator,
    make,
    refresh_priorities,
    rows,
)
from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler


@pytest.mark.parametrize("as_factory", [False, True])
def test_samplers_may_be_instances_or_factories(as_factory):
    critic, actor = RankPrioritizedSampler, partial(VMFSampler, "rank")
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        critic_sampler=critic if as_factory else critic(),
        actor_sampler=actor if as_factory else actor(),
    )
    assert type(buffer.critic_sampler) is RankPrioritizedSampler
    assert buffer.actor_sampler.mode == "rank"
    default = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY))
    assert type(default.critic_sampler) is type(default.sampler) is RandomSampler
    assert type(default.actor_sampler) is VMFSampler


@pytest.mark.parametrize(
    "first_use",
    [
        lambda buffer: buffer.actor_sampler,
        lambda buffer: buffer.extend(rows(0, 3)),
        lambda buffer: buffer.set_rng(generator(3)),
        lambda buffer: buffer.empty(),
        lambda buffer: buffer.state_dict(),
        lambda buffer: len(buffer),
    ],
    ids=["actor_sampler", "extend", "set_rng", "empty", "state_dict", "len"],
)
def test_a_buffer_with_delayed_init_draws_like_any_other(first_use):
    buffer, twin = make("rank_per", delayed_init=True), make("rank_per")
    assert not buffer.initialized
    for one in (buffer, twin):
        first_use(one)
        one.extend(rows(0, 20))
        refresh_priorities(one, "rank_per", "vmf_uncertainty", 20)
    assert_same_future(buffer, twin)


@pytest.mark.parametrize("delayed_init", [False, True])
@pytest.mark.parametrize("actor", ACTOR_SAMPLERS)
def test_the_actor_draws_from_existing_data(actor, delayed_init):
    storage = LazyTensorStorage(CAPACITY)
    TensorDictReplayBuffer(storage=storage).extend(rows(0, 20))
    buffer = ActorCriticReplayBuffer(
        storage=storage,
        actor_sampler=ACTOR_SAMPLERS[actor](),
        generator=generator(),
        delayed_init=delayed_init,
    )
    drawn = buffer.sample_actor(1000)["index"]
    # All 20 priorities are equal: a slot is missed with probability 20 * 0.95^1000 < 1e-20 (also
    # in rank mode, where ties share the probability).
    assert drawn.unique().tolist() == list(range(20))


@pytest.mark.parametrize("sampler", [VMFSampler, VMFSampler("rank")])
def test_a_sampler_by_factors_is_not_taken_for_that_of_the_critics(sampler):
    with pytest.raises(TypeError, match="actor_sampler="):
        ActorCriticReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler)
