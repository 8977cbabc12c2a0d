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
    factors,
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


def test_the_two_samplers_learn_independently():
    buffer = make("rank_per", "vmf_uncertainty")
    buffer.extend(rows(0, 20))
    refresh_priorities(buffer, "rank_per", "vmf_uncertainty", 20)
    critic, actor = (stored_factors(s) for s in (buffer.critic_sampler, buffer.actor_sampler))
    assert torch.equal(critic, factors(20, 0))
    assert torch.equal(actor, factors(20, 1))
    buffer.update_priority(torch.arange(5), torch.full((5,), 9.0))
    assert torch.equal(stored_factors(buffer.actor_sampler), actor)
    critic = stored_factors(buffer.critic_sampler)
    buffer.update_actor_priority(torch.arange(5, 9), torch.full((4,), 1.25))
    assert torch.equal(stored_factors(buffer.critic_sampler), critic)
    assert stored_factors(buffer.actor_sampler)[5:9].tolist() == [1.25] * 4


def test_update_tensordict_priority_reaches_the_critics_sampler_only():
    buffer = make("per")
    buffer.extend(rows(0, 20))
    before = stored_factors(buffer.actor_sampler)
    batch = buffer[torch.arange(20)]
    batch["index"] = torch.arange(20)
    batch["td_error"] = torch.where(torch.arange(20) == 7, 1e9, 0.0)
    buffer.update_tensordict_priority(batch)
    # TorchRL adds 1e-8 to each priority: another slot is drawn less than once in 1e10 draws.
    assert set(buffer.sample(1000)["index"].tolist()) == {7}
    assert torch.equal(stored_factors(buffer.actor_sampler), before)


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


def test_overwriting_resets_the_priority_in_a_torchrl_sampler_for_actor_or_critics():
    buffer = make("per", "per")
    buffer.extend(rows(0, CAPACITY))
    index = torch.arange(CAPACITY)
    for update in (buffer.update_priority, buffer.update_actor_priority):
        update(index, torch.where(index == 0, 1e9, 1e-9))
    assert set(buffer.sample(500)["index"].tolist()) == {0}
    assert set(buffer.sample_actor(500)["index"].tolist()) == {0}
    buffer.extend(rows(100, 3))
    # TorchRL's default is the highest priority seen: slots 0 to 2 have a third of the mass each.
    assert set(buffer.sample(500)["index"].tolist()) == {0, 1, 2}
    assert set(buffer.sample_actor(500)["index"].tolist()) == {0, 1, 2}


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


@pytest.mark.parametrize("actor", ACTOR_SAMPLERS)
def test_the_state_of_the_generator_determines_the_draws(actor):
    buffer = make("rank_per", actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, "rank_per", actor, CAPACITY)
    sequences = []
    for _ in range(2):
        buffer._rng.set_state(generator(12).get_state())
        sequences.append([draw()["index"] for draw in 3 * [buffer.sample_actor, buffer.sample]])
    assert all(torch.equal(a, b) for a, b in zip(*sequences, strict=True))


def test_draws_for_the_actor_advance_the_generator_of_the_critics():
    buffer, twin = make(), make()
    for one in (buffer, twin):
        one.extend(rows(0, CAPACITY))
    buffer.sample_actor()
    assert not torch.equal(buffer.sample()["index"], twin.sample()["index"])
