"""Tasks to test with: names, and environments with unusual spaces, outputs or state."""

from __future__ import annotations

import collections
import random
from typing import Any

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
    """Counts its steps in an array that it returns again, and overwrites its actions."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, shape, render_mode=None):
        self.observation_space = gym.spaces.Box(-1e3, 1e3, shape, np.float32)
        self.array = np.zeros(shape, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        self.array += 1
        action[:] = 0
        return self.array, 0.0, False, False, {}


gym.register("OneVector-v0", OneArray, max_episode_steps=20, kwargs={"shape": (1,)})
gym.register("OneMatrix-v0", OneArray, max_episode_steps=20, kwargs={"shape": (2, 2)})


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
        self._start(0)

    def _start(self, seed):
        self.tasks = {np.str_("up"), "down"}
        self.counts = {"steps": 0}
        self.recent = collections.deque(maxlen=2)
        self.phase = "down"
        self.nested = {"a": [np.float32(0.1), {"b": (1, None)}]}
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)
        self.array = np.random.Generator(np.random.MT19937(0))
        self.also_array = self.array
        self.torch_rng, self.tensor = torch.Generator(), torch.zeros(1)
        self.late: Any = None
        self.received = []

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
        self.phase = "up"
        self.tasks.discard("up")
        self.nested["a"][0] = self.nested["a"][0] * np.float32(1.1)
        self.late = self.late or np.random.default_rng(0)
        noise = (
            self.late.uniform()
            + self.legacy.uniform()
            + self.python.random()
            + self.also_array.uniform()
        )
        self.tensor += torch.rand(1, generator=self.torch_rng) + self.array.uniform()
        self.position = self.position + 0.01 * action * (1 + self.nested["a"][0]) + noise
        reward = float(self.counts["steps"] + sum(self.recent) + len(self.tasks) + self.tensor)
        return self._observation(), reward, False, False, {"tasks": {"left": self.tasks}}

    def _observation(self):
        goal = {"x": self.position[:1] * 1.0}
        return {"observation": self.position, "achieved_goal": goal, "desired_goal": self.goal}


gym.register("Lever-v0", Lever, max_episode_steps=30)
