"""The direct collector records the transitions of the environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import GymWrapper

from vmfer_recipes.collection.direct import DirectCollector


class SameArray(gym.Env):
    """Counts its steps, in an array that it returns again at every step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self):
        self._count = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count[:] = 0
        return self._count, {}

    def step(self, action):
        self._count += 1
        action[:] = 0
        return self._count, 1.0, bool(self._count >= 3), False, {}


def kept(transition):
    entries = ("observation", "reward", "done", "terminated")
    return transition.select("observation", "action", *(("next", entry) for entry in entries))


def test_observations_that_the_environment_overwrites():
    collector = DirectCollector(
        GymWrapper(SameArray()),
        TensorDictModule(lambda _: torch.full((1,), 0.5), ["observation"], ["action"]),
        frames_per_batch=1,
        total_frames=5,
        postproc=kept,
        auto_register_policy_transforms=False,
    )
    found = [
        [batch[key].item() for key in ("observation", "action", ("next", "observation"))]
        for batch in collector
    ]
    collector.shutdown()
    assert found == [[0, 0.5, 1], [1, 0.5, 2], [2, 0.5, 3], [0, 0.5, 1], [1, 0.5, 2]]
