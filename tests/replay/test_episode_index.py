"""The episode index against an enumeration of all writes."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_vmfer.replay.episode_index import EpisodeIndex

STRATEGIES = ("future", "final", "episode")


class Ring:
    """A ring buffer of steps and its index, with a list of all writes as the reference."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.index = EpisodeIndex()
        self.written = []  # (slot, episode) in the order of writing
        self.episode_of_trajectory = {}
        self.num_episodes = 0

    def write(self, trajectory, done):
        slots = [(len(self.written) + i) % self.capacity for i in range(len(done))]
        for slot, number, ends in zip(slots, trajectory, done, strict=True):
            if number not in self.episode_of_trajectory:
                self.episode_of_trajectory[number] = self.num_episodes
                self.num_episodes += 1
            self.written.append((slot, self.episode_of_trajectory[number]))
            if ends:
                del self.episode_of_trajectory[number]
        self.index.append(np.array(slots), np.array(trajectory), np.array(done, bool))

    def episodes(self):
        """Returns the live slots of each episode in order."""
        episodes = {}
        for slot, episode in self.written[-self.capacity :]:
            episodes.setdefault(episode, []).append(slot)
        return list(episodes.values())


def assert_correct(index, episodes):
    assert len(index) == sum(map(len, episodes))
    for slots in episodes:
        for step, slot in enumerate(slots):
            assert index.episode(slot).tolist() == slots
            goals = {
                "future": slots[step:],
                "final": slots[-1:] * len(slots),
                "episode": slots,
            }
            for strategy, expected in goals.items():
                # The midpoints of as many equal intervals as there are goals.
                uniform = (np.arange(len(expected)) + 0.5) / len(expected)
                drawn = index.draw(np.full(len(expected), slot), uniform, strategy)
                assert drawn.tolist() == expected


@st.composite
def writes(draw):
    capacity = draw(st.integers(1, 12))
    steps = st.tuples(st.integers(-1, 2), st.sampled_from([False, False, False, True]))
    chunks = st.lists(steps, min_size=1, max_size=capacity)
    return capacity, draw(st.lists(chunks, max_size=12))


@settings(max_examples=150)
@given(writes())
def test_episodes_and_draws_equal_an_enumeration(plan):
    capacity, chunks = plan
    ring = Ring(capacity)
    for chunk in chunks:
        ring.write(*map(list, zip(*chunk, strict=True)))
        assert_correct(ring.index, ring.episodes())


def used_for_long(ring, steps):
    """Interleaves episodes of five environments."""
    random, step = np.random.default_rng(0), np.zeros(5, int)
    for _ in range(steps):
        environment = random.integers(5)
        step[environment] += 1
        done = step[environment] == 20 + 10 * environment
        step[environment] *= not done
        ring.write([environment], [done])


def used_without_end(ring, steps):
    for _ in range(steps):
        ring.write([0], [False])


def used_and_abandoned(ring, steps):
    # A collector that is reset abandons its unfinished trajectories.
    for number in range(steps):
        ring.write([number], [False])


@pytest.mark.parametrize("use", [used_for_long, used_without_end, used_and_abandoned])
def test_memory_is_bounded_and_the_index_correct(use):
    ring = Ring(50)
    use(ring, 1000)
    size = len(pickle.dumps(ring.index))
    assert_correct(ring.index, ring.episodes())
    use(ring, 3000)
    assert len(pickle.dumps(ring.index)) < 1.5 * size
    assert_correct(ring.index, ring.episodes())
