"""The episode index against an enumeration of all writes."""

import numpy as np
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


def test_long_use_does_not_grow_memory_or_rebuild_often(monkeypatch):
    rebuilt = []
    live_steps = EpisodeIndex._live_steps
    monkeypatch.setattr(
        EpisodeIndex, "_live_steps", lambda self: rebuilt.append(1) or live_steps(self)
    )
    ring, random = Ring(200), np.random.default_rng(0)
    step = np.zeros(5, int)
    for time in range(6000):
        environment = random.integers(5)
        step[environment] += 1
        done = step[environment] == 20 + 10 * environment
        step[environment] *= not done
        ring.write([environment], [done])
        if time % 499 == 0:
            assert_correct(ring.index, ring.episodes())
    # Each rebuild leaves at least as many free cells as used ones, and a step uses at most four:
    # one in its block, the others in blocks that it was moved from.
    assert len(rebuilt) < 4 * 6000 / 200
    assert len(ring.index._pool) < 10 * 200 + 2 * 5 * 64
    assert len(ring.index._episodes) < 10 * 200
    assert len(ring.index._episode_of) < 2 * 200


def test_an_episode_may_be_longer_than_the_ring():
    ring = Ring(10)
    for _ in range(1000):
        ring.write([0], [False])
    assert_correct(ring.index, ring.episodes())
    assert ring.index.episode(3).tolist() == list(range(10))
    assert len(ring.index._pool) < 1000


def test_abandoned_trajectories_are_removed():
    # A collector that is reset abandons its unfinished trajectories.
    ring = Ring(50)
    for number in range(1500):
        ring.write([number], [False])
    assert len(ring.index._unfinished) < 500
    assert_correct(ring.index, ring.episodes())
