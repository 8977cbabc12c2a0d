"""The Shooting environment: one shot, rewarded by how near it lands to the target's center."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

__all__ = ["ACTION_BOUND", "INITIAL_STATE", "OPTIMAL_ACTION", "Shooting", "reward"]

INITIAL_STATE = (-0.5, -0.5)
OPTIMAL_ACTION = (-0.5, -0.5)
# The paper's action space is the whole plane. TD3's policy ends in a tanh, and shots that are
# spread evenly need an edge, so this one is the square on which that policy is defined.
ACTION_BOUND = 1.0


def reward(action: Tensor) -> Tensor:
    """R = -‖a - a*‖ for actions ``[*, 2]``.

    Examples:
        >>> reward(torch.tensor([[-0.5, -0.5], [0.1, 0.3]]))
        tensor([-0., -1.])
    """
    return -torch.linalg.vector_norm(action - action.new_tensor(OPTIMAL_ACTION), dim=-1)


class Shooting(gym.Env[np.ndarray, np.ndarray]):
    """A decision process of one step, registered as ``Shooting-v0``.

    Every episode starts in the same state, takes one action and ends with its reward.

    Examples:
        >>> env = gym.make("Shooting-v0")
        >>> observation, _ = env.reset(seed=0)
        >>> _, reward, terminated, truncated, _ = env.step(np.float32([-0.5, 0.5]))
        >>> reward, terminated, truncated
        (-1.0, True, False)
    """

    metadata: dict[str, Any] = {"render_modes": []}
    observation_space = gym.spaces.Box(-ACTION_BOUND, ACTION_BOUND, (2,), np.float32)
    action_space = gym.spaces.Box(-ACTION_BOUND, ACTION_BOUND, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in the only state."""
        super().reset(seed=seed, options=options)
        return np.array(INITIAL_STATE, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Fires the shot, which ends the episode."""
        value = reward(torch.as_tensor(action, dtype=torch.float64)).item()
        return np.array(INITIAL_STATE, np.float32), value, True, False, {}


gym.register("Shooting-v0", entry_point=f"{__name__}:{Shooting.__name__}")
