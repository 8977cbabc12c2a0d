"""Two samplers with separate priorities, the same writes and one random generator."""

import itertools

import pytest
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
        self.reports = []

    def add(self, index):
        self.reports.append(("add", index))

    def extend(self, index):
        self.reports.append(("extend", index.tolist()))

    def mark_update(self, index, *, storage=None):
        self.reports.append(("mark_update", index if isinstance(index, int) else index.tolist()))


@pytest.mark.parametrize("side", ["critic_sampler", "actor_sampler"])
def test_writes_are_reported_to_both_samplers_as_in_a_plain_buffer(side):
    # Prioritized samplers with max_priority_within_buffer=True depend on it, for example.
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), **{side: WriteLog()})
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=WriteLog())
    for one in (buffer, plain):
        one.extend(rows(0, 3))
        one.add(rows(3, 1)[0])
    assert getattr(buffer, side).reports == plain.sampler.reports


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
