"""Draws of the critics and the actor against plain buffers and exact probabilities."""

from functools import partial

import pytest
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

from helpers.actor_critic import (
    ACTOR_SAMPLERS,
    BATCH,
    CAPACITY,
    CRITIC_SAMPLERS,
    assert_equal,
    factors,
    generator,
    make,
    rows,
)
from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler

# --- the critics ---------------------------------------------------------------------------

each_critic = pytest.mark.parametrize("critic", CRITIC_SAMPLERS)


@each_critic
def test_critic_batches_equal_those_of_a_plain_buffer(critic):
    buffer = make(critic)
    plain = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=CRITIC_SAMPLERS[critic](),
        batch_size=BATCH,
        generator=generator(),
    )
    for step in range(8):
        for one in (buffer, plain):
            one.extend(rows(10 * step, 10))
            one.add(rows(500 + step, 1)[0])
        batch = plain.sample()
        assert_equal(buffer.sample(), batch)
        if "per" in critic:
            for one in (buffer, plain):
                one.update_priority(batch["index"], factors(BATCH, step))
        batch["td_error"] = factors(BATCH, step + 100)
        buffer.update_tensordict_priority(batch.clone())
        if critic == "rank_per":
            # In a plain buffer, TorchRL silently ignores samplers that are not its own.
            plain.update_priority(batch["index"], batch["td_error"])
        else:
            plain.update_tensordict_priority(batch.clone())


# --- the actor -----------------------------------------------------------------------------

OTHER_ACTOR_SAMPLERS = {
    "rank_per": RankPrioritizedSampler,
    "without_replacement": SamplerWithoutReplacement,
    "slices": partial(SliceSampler, num_slices=2, traj_key="trajectory", strict_length=False),
}


@pytest.mark.parametrize(
    "sampler",
    [*ACTOR_SAMPLERS.values(), *OTHER_ACTOR_SAMPLERS.values()],
    ids=[*ACTOR_SAMPLERS, *OTHER_ACTOR_SAMPLERS],
)
def test_actor_batches_equal_those_of_a_plain_buffer(sampler):
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        actor_sampler=sampler(),
        batch_size=BATCH,
        generator=generator(),
    )
    plain = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=sampler(),
        batch_size=BATCH,
        generator=generator(),
    )
    takes_priorities = isinstance(plain.sampler, VMFSampler | PrioritizedSampler)
    for step in range(8):
        for one in (buffer, plain):
            one.extend(rows(10 * step, 10))
        batch = plain.sample()
        assert_equal(buffer.sample_actor(), batch)
        if takes_priorities:
            priority = factors(BATCH, step)
            plain.update_priority(batch["index"], priority)
            buffer.update_actor_priority(batch["index"], priority)


def test_a_missing_batch_size_is_an_error_that_says_what_to_do():
    buffer = make(batch_size=None)
    buffer.extend(rows(0, 20))
    with pytest.raises(RuntimeError, match=r"batch size: pass it"):
        buffer.sample_actor()
