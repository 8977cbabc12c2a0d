"""Tasks to test with: names, and environments with unusual spaces, outputs or state."""

from __future__ import annotations

import collections
import dataclasses
import enum
import random
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

MUJOCO = [
    "HalfCheetah-v4",
    "Ant-v4",
    "Hopper-v4",
    "InvertedPendulum-v4",
    "Walker2d-v4",
    "Swimmer-v4",
    "Humanoid-v4",
]


def slow_but(quick: set[str], names: list[str]) -> list:
    """The names as parameters of a test, all marked slow except for ``quick``."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


class OneArray(gym.Env):
    """An environment that returns the same array at every step and keeps its state in a list."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (2, 2), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.array = np.zeros((2, 2), np.float32)
        self.state = [0, 0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = 0
        self.state = [0, 0]
        return self.array, {}

    def step(self, action):
        self.array += 1
        self.state[0] += 1
        return self.array, 0.0, False, False, {}


gym.register("OneArray-v0", OneArray, max_episode_steps=20)


class Phase(enum.Enum):
    DOWN = 0
    UP = 1


class Lever(gym.Env):
    """An environment with actions of any data type and state in many kinds of attributes.

    Names and dictionaries are as in FrankaKitchen, which has float64 actions.
    """

    observation_space = gym.spaces.Dict(
        {
            "observation": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "achieved_goal": gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (1,), np.float64)}),
            "desired_goal": gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (1,), np.float64)}),
        }
    )

    def __init__(self, dtype=np.float64, low=-2, high=2):
        self.action_space = gym.spaces.Box(low, high, (2,), dtype)
        self.robot_name = np.str_("Lever")
        self.goal = {"x": np.array([0.5])}
        self.received = []
        self.renderer = object()  # no state
        self._start(0)

    def _start(self, seed):
        self.tasks = {np.str_("up"), "down"}
        self.counts = collections.defaultdict(int)
        self.recent = collections.deque(maxlen=2)
        self.phase = Phase.DOWN
        self.nested = {"a": [np.float32(0.1), {"b": (1, None)}]}
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)
        self.array = np.random.Generator(np.random.MT19937(0))
        self.received = []
        self.renderer = object()  # no state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._start(seed)
        self.position = self.np_random.uniform(-1, 1, 2)
        return self._observation(), {"tasks": {"left": {"up"}}}

    def step(self, action):
        assert action.dtype == self.action_space.dtype
        assert self.action_space.contains(action)
        self.received.append(action.tolist())
        self.recent.append(float(action[0]))
        self.counts["steps"] += 1
        self.phase = Phase.UP
        self.tasks.discard("up")
        self.nested["a"][0] = self.nested["a"][0] * np.float32(1.1)
        noise = self.legacy.uniform() + self.python.random() + self.array.uniform()
        self.position = self.position + 0.01 * action * (1 + self.nested["a"][0]) + noise
        reward = float(self.counts["steps"] + sum(self.recent) + len(self.tasks))
        return self._observation(), reward, False, False, {"tasks": {"left": self.tasks}}

    def _observation(self):
        goal = {"x": self.position[:1] * 1.0}
        return {"observation": self.position, "achieved_goal": goal, "desired_goal": self.goal}


gym.register("Lever-v0", Lever, max_episode_steps=30)


class Mode(enum.Enum):
    """The mode of Workshop-v0."""

    IDLE = 0
    BUSY = 1


ORIGIN = np.zeros(1)  # a constant that all episodes share


class Workshop(gym.Env):
    """Arrays that are views of each other, and objects that are created at the first step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (7,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self):
        self.state = np.zeros(2)
        self.position = self.state[:1]
        self.weights = torch.zeros(2)
        self.first_weight = self.weights[:1]
        self.goals = np.arange(8.0)
        self.matrix = np.asfortranarray(np.random.default_rng(0).normal(size=(64, 64)))
        self.numbers = self.twister = self.dice = self.noise = self.recent = self.mode = None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state[:] = 0
        self.weights[:] = 0
        self.current = self.former = ORIGIN  # separate arrays from the first step on
        self.goal = self.goals[:1]
        return self._observation(), {}

    def step(self, action):
        if self.numbers is None:
            self.numbers = np.random.Generator(np.random.Philox(3))
            self.twister, self.dice = np.random.RandomState(3), random.Random(3)
            self.noise = torch.Generator().manual_seed(3)
            self.recent, self.mode = collections.deque(maxlen=2), Mode.IDLE
        self.position += action + self.numbers.normal() + self.twister.normal()
        self.first_weight += self.dice.random() + torch.rand(1, generator=self.noise)
        self.recent.append(float(self.state[0]))
        self.former, self.current = self.current, self.current + 1
        start = int(self.current[0]) % 8
        self.goal = self.goals[start : start + 1]
        self.mode = Mode.BUSY if self.mode is Mode.IDLE else Mode.IDLE
        return self._observation(), float(self.mode is Mode.BUSY), False, False, {}

    def _observation(self):
        recent = sum(self.recent or [])
        product = (self.matrix @ np.linspace(0, self.state[0], 64)).sum()
        values = [self.state[0], self.weights[0], self.former[0], self.current[0]]
        return np.array([*values, recent, self.goal[0] + self.goals.sum(), product])


gym.register("Workshop-v0", Workshop)


@dataclasses.dataclass(frozen=True)
class Rules:
    limit: float


class Car:
    """An object with state of its own."""

    def __init__(self, generator):
        self.position = generator.normal(size=2)
        self.weight = torch.from_numpy(generator.normal(size=1))
        self.dice = random.Random(int(generator.integers(100)))
        self.generator = generator  # that of the environment

    def move(self, action):
        noise = self.dice.random() + self.generator.normal()
        self.position = 0.9 * self.position + action + noise
        self.weight += 0.1


class Traffic(gym.Env):
    """Objects whose number and references change from episode to episode."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (6,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    cars: ClassVar[list[Car]] = []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.rules = Rules(limit=self.np_random.normal())
        self.cars = [Car(self.np_random) for _ in range(self.np_random.integers(1, 6))]
        self.leader = self.cars[self.np_random.integers(len(self.cars))]
        self.places = {"home": self.np_random.normal(size=1), 3: Car(self.np_random)}
        self.pair = (self.leader, self.np_random.normal(), None)
        self.also_cars = self.cars
        self.lanes = [[Car(self.np_random)], {"left": (Car(self.np_random),)}]
        self.queue = collections.deque(self.cars, maxlen=3)
        return self._observation(), {}

    def step(self, action):
        for car in (*self.cars, self.places[3], self.lanes[0][0], self.lanes[1]["left"][0]):
            car.move(action[0])
        self.queue.append(self.lanes[0][0])
        if self.np_random.random() < 0.3:
            self.also_cars.append(Car(self.np_random))
            self.leader = self.cars[-1]
        return self._observation(), 0.0, False, self.np_random.random() < 0.1, {}

    def _observation(self):
        cars = (*self.cars, *self.queue, self.lanes[1]["left"][0])
        everything = sum(car.position.sum() + car.weight.item() for car in cars)
        leaders = [
            self.leader.position[0],
            self.pair[0].position[0],
            self.pair[1] + self.rules.limit,
        ]
        others = [self.places["home"][0], self.places[3].position[0]]
        return np.array([everything, *leaders, *others])


gym.register("Traffic-v0", Traffic)
