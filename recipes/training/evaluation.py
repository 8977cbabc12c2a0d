"""How good is a policy? Whole episodes in an environment of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from vmfer_recipes.training.environments import tensors

__all__ = ["Evaluation", "evaluate"]


class Evaluation(NamedTuple):
    """A row of ``eval.csv`` but for the step."""

    return_mean: float
    return_std: float
    episode_length: float
    success_rate: float | None


@torch.no_grad()
def evaluate(
    policy: TensorDictModuleBase | None, env: GymWrapper, episodes: int, seed: int
) -> Evaluation:
    """Plays whole episodes without exploration.

    Args:
        policy: the policy; ``None`` acts at random.
        env: an environment that is used for nothing else.
        episodes: how many episodes to play.
        seed: the first episode's seed; the others count up. The same seeds are used at every
            evaluation, so that curves differ by the policy and not by luck.
    """
    returns, lengths, successes = [], [], []
    # The simulator is asked directly: an episode is a thousand steps, and none is stored.
    simulator = env._env
    simulator.action_space.seed(seed)
    for episode in range(episodes):
        observation, info = simulator.reset(seed=seed + episode)
        total, length, over = 0.0, 0, False
        while not over:
            if policy is None:
                action = simulator.action_space.sample()
            else:
                with set_exploration_type(ExplorationType.DETERMINISTIC):
                    action = policy(TensorDict(tensors(observation)))["action"].numpy(force=True)
            observation, reward, terminated, truncated, info = simulator.step(action)
            total, length, over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
        success = info.get("is_success", info.get("success"))
        if success is not None:
            successes.append(float(success))
    return Evaluation(
        float(np.mean(returns)),
        float(np.std(returns)),
        float(np.mean(lengths)),
        float(np.mean(successes)) if successes else None,
    )
