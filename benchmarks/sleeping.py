"""A simulator whose steps take time but no processor, for ``benchmarks/collectors.py``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Sleeping(gym.Env):
    """Sleeps in every step, for as many milliseconds as a file says."""

    observation_space = gym.spaces.Box(-1, 1, (17,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self, file: str, render_mode: str | None = None) -> None:
        self._milliseconds = np.memmap(file, np.float64, "r")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> Any:
        time.sleep(self._milliseconds[0] / 1000)
        return self.observation_space.sample(), 0.0, False, False, {}


gym.register("Sleeping-v0", "sleeping:Sleeping", max_episode_steps=20)
