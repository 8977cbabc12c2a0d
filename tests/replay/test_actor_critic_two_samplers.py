"""Two samplers with separate priorities, the same writes and one random generator."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer

from helpers.actor_critic import (
    ACTOR_SAMPLERS,
    CAPACITY,
    CRITIC_SAMPLERS,
    assert_same_future,
    generator,
    make,
    refresh_priorities,
    rows,
    stored_factors,
)
from torchrl_vmfer import ActorCriticReplayBuffer

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

PAIRS = list(itertools.product(CRITIC_SAMPLERS, ACTOR_SAMPLERS))
each_pair = pytest.mark.parametrize(("critic", "actor"), PAIRS)


# --- priorities and writes -----------------------------------------------------------------


class WriteLog(RandomSampler):
    """A custom sampler that records the writes reported to it."""

    def __init__(self):
        self.told = []

    def add(self, index):
        self.told.append(("add", index))

    def extend(self, index):
        self.told.append(("extend", index.tolist()))

    def mark_update(self, index, *, storage=None):
        self.told.append(("mark_update", index if isinstance(index, int) else index.tolist()))


@pytest.mark.parametrize("side", ["critic_sampler", "actor_sampler"])
def test_writes_are_reported_to_both_samplers_as_in_a_plain_buffer(side):
    # Prioritized samplers with max_priority_within_buffer=True depend on it, for example.
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), **{side: WriteLog()})
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=WriteLog())
    for one in (buffer, plain):
        one.extend(rows(0, 3))
        one.add(rows(3, 1)[0])
    assert getattr(buffer, side).told == plain.sampler.told


@pytest.mark.parametrize("write", ["extend", "add"])
def test_a_write_resets_the_overwritten_slots_in_both_samplers(write):
    buffer = make("rank_per", "vmf_uncertainty")
    buffer.extend(rows(0, CAPACITY))
    index = torch.arange(CAPACITY)
    buffer.update_priority(index, torch.linspace(0.1, 5.0, CAPACITY))
    buffer.update_actor_priority(index, torch.full((CAPACITY,), 2.5))
    if write == "extend":
        buffer.extend(rows(100, 4))
    else:
        for number in range(100, 104):
            buffer.add(rows(number, 1)[0])
    fresh = index < 4
    actor = stored_factors(buffer.actor_sampler)
    assert torch.equal(actor, torch.where(fresh, 1.0, 2.5))
    critic = stored_factors(buffer.critic_sampler)
    # A new transition has the highest priority seen, so that the critics sample it soon.
    assert torch.equal(critic, torch.where(fresh, 5.0, torch.linspace(0.1, 5.0, CAPACITY)))


@each_pair
def test_empty_resets_both_samplers(critic, actor):
    buffer = make(critic, actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, critic, actor, CAPACITY)
    buffer.sample()
    buffer.empty()
    assert len(buffer) == 0
    for draw in (buffer.sample, buffer.sample_actor):
        with pytest.raises(RuntimeError, match="empty storage"):
            draw()
    fresh = make(critic, actor)
    for one in (buffer, fresh):
        one.set_rng(generator(5))
        one.extend(rows(0, 12))
    assert_same_future(buffer, fresh)


# --- the random generator ------------------------------------------------------------------


@each_pair
def test_both_samplers_use_only_the_generator_of_the_buffer(critic, actor):
    buffer = make(critic, actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, critic, actor, CAPACITY)
    twin = pickle.loads(pickle.dumps(buffer))

    global_states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sequences = []
    for one in (buffer, twin):
        one.set_rng(generator(11))
        sequences.append([draw()["index"] for draw in 3 * [one.sample_actor, one.sample]])
    assert all(torch.equal(a, b) for a, b in zip(*sequences, strict=True))
    assert torch.equal(torch.get_rng_state(), global_states[0])
    assert (np.random.get_state()[1] == global_states[1]).all()  # noqa: NPY002
