"""Interleaved environments, and an enumeration of the possible goals of each transition."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from helpers.actor_critic import generator
from torchrl_vmfer import HindsightReplayBuffer

CAPACITY = 32
BATCH = 16
ORIGINAL = -1.0  # the goal of the environment, in every transition
STRATEGIES = ("future", "final", "episode")

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def reward_fn(achieved, desired):
    return achieved[:, 0] - 2 * desired[:, 0]


def unexpected(achieved, desired):
    raise AssertionError("no reward was asked for")


def make(storage=LazyTensorStorage, seed=0, **kwargs):
    defaults = {"her_ratio": 1.0, "reward_fn": reward_fn, "batch_size": BATCH}
    return HindsightReplayBuffer(
        storage=storage(CAPACITY), generator=generator(seed), **defaults | kwargs
    )


class World:
    """Environments that are interleaved at random. Each transition has a number.

    The goal achieved by transition k is (k, -k), so that a goal identifies its transition.

    With ``cut_off``, every other episode of an environment ends without ``done``, and the number of
    the environment is that of all its trajectories.
    """

    def __init__(self, environments=1, trajectories=True, seed=0, cut_off=False):
        self.cut_off = cut_off
        self.random = np.random.default_rng(seed)
        self.trajectories = trajectories
        self.left = [0] * environments
        self.episode = [0] * environments
        self.last = [-1] * environments  # the last transition of each environment
        self.num_episodes = 0
        self.history = []  # the episode of each transition

    def steps(self, count):
        numbers, trajectories, done, before = [], [], [], []
        for _ in range(count):
            turn = self.random.integers(len(self.left))
            if self.left[turn] == 0:
                self.left[turn] = int(self.random.integers(1, 9))
                self.episode[turn] = self.num_episodes
                self.num_episodes += 1
                self.last[turn] = -1 - self.num_episodes  # a state of its own
            self.left[turn] -= 1
            numbers.append(len(self.history))
            before.append(self.last[turn])
            self.last[turn] = numbers[-1]
            is_cut_off = self.cut_off and self.episode[turn] % 2 == 0
            trajectories.append(turn if self.cut_off else self.episode[turn])
            done.append(self.left[turn] == 0 and not is_cut_off)
            self.history.append(self.episode[turn])
        return transitions(numbers, done, trajectories if self.trajectories else None, before)

    def goals(self, strategy, capacity=CAPACITY):
        """Enumerates the goals that each live transition may get."""
        live = range(max(0, len(self.history) - capacity), len(self.history))
        allowed = {}
        for number in live:
            mates = [other for other in live if self.history[other] == self.history[number]]
            allowed[number] = {
                "future": [other for other in mates if other >= number],
                "final": mates[-1:],
                "episode": mates,
            }[strategy]
        return allowed


def transitions(numbers, done, trajectories=None, before=None):
    """Transitions with these numbers; each starts where transition ``before`` ended."""
    before = [number - 1 for number in numbers] if before is None else before
    start = torch.tensor(before, dtype=torch.float32)[:, None]
    number = torch.tensor(numbers, dtype=torch.float32)[:, None]
    goal = torch.full((len(numbers), 2), ORIGINAL)
    data = {
        "observation": number.repeat(1, 3),
        "achieved_goal": torch.cat([start, -start], -1),
        "desired_goal": goal,
        "next": {
            "observation": number.repeat(1, 3) + 1,
            "achieved_goal": torch.cat([number, -number], -1),
            "desired_goal": goal.clone(),
            "reward": torch.full((len(numbers), 1), 0.25),
            "done": torch.tensor(done)[:, None],
        },
    }
    if trajectories is not None:
        data["collector"] = {"traj_ids": torch.tensor(trajectories)}
    return TensorDict(data, [len(numbers)])


def pairs(batch):
    """Returns the numbers of the transitions and of their goals."""
    goals = batch["desired_goal"]
    assert torch.equal(goals[:, 0], -goals[:, 1])
    return batch["observation"][:, 0].int().tolist(), goals[:, 0].int().tolist()


def assert_goals_are_those_enumerated(buffer, world, strategy, draws=4000):
    allowed = world.goals(strategy)
    seen = {number: set() for number in allowed}
    for number, goal in zip(*pairs(buffer.sample(draws)), strict=True):
        seen[number].add(goal)
    for number, goals in seen.items():
        assert goals <= set(allowed[number]), (number, goals, allowed[number])
    # 4000 draws from at most 32 * 8 pairs miss any one with probability 256 * e^-15 < 1e-4.
    missed = [number for number in allowed if seen[number] != set(allowed[number])]
    assert not missed


def assert_equal(actual, expected):
    assert set(actual.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert torch.equal(actual[key], expected[key]), key
