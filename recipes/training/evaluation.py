"""Evaluation: whole episodes without exploration, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from vmfer_recipes.training.environments import Environment, tensors

__all__ = ["Episode", "Evaluation", "evaluate", "play_episode"]


class Episode(NamedTuple):
    """The result of one episode."""

    total: float
    length: int
    success: float | None


class Evaluation(NamedTuple):
    """A row of ``eval.csv`` without the step."""

    return_mean: float
    return_std: float
    episode_length: float
    success_rate: float | None


@torch.no_grad()
def play_episode(
    policy: TensorDictModuleBase | None,
    simulator: gym.Env,
    seed: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Episode:
    """Plays one episode without exploration.

    Args:
        policy: the policy; ``None`` acts at random.
        simulator: the Gymnasium environment. It is stepped directly: an episode has a thousand
            steps, and none is stored.
        seed: the seed of the initial state.
        on_step: called after the reset and after every step with ``observation``, and after a
            step also with ``action``, ``reward``, ``terminated``, ``truncated`` and ``info``.
    """
    observation, info = simulator.reset(seed=seed)
    if on_step is not None:
        on_step({"observation": observation, "info": info})
    total, length, is_over = 0.0, 0, False
    while not is_over:
        action = simulator.action_space.sample() if policy is None else _act(policy, observation)
        observation, reward, terminated, truncated, info = simulator.step(action)
        total, length, is_over = total + float(reward), length + 1, terminated or truncated
        if on_step is not None:
            on_step(
                {
                    "observation": observation,
                    "action": action,
                    "reward": reward,
                    "terminated": terminated,
                    "truncated": truncated,
                    "info": info,
                }
            )
    success = info.get("is_success", info.get("success"))
    return Episode(total, length, None if success is None else float(success))


def _act(policy: TensorDictModuleBase, observation: Any) -> np.ndarray:
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        return policy(TensorDict(tensors(observation)))["action"].numpy(force=True)


def evaluate(
    policy: TensorDictModuleBase | None, env: Environment, episodes: int, seed: int
) -> Evaluation:
    """Plays whole episodes without exploration.

    Args:
        policy: the policy; ``None`` acts at random.
        env: an environment used only for evaluation.
        episodes: the number of episodes to play.
        seed: the seed of the first episode, incremented for each further episode. Every evaluation
            uses the same seeds, so that differences between evaluations come from the policy.
    """
    env.simulator.action_space.seed(seed)
    played = [play_episode(policy, env.simulator, seed + number) for number in range(episodes)]
    successes = [episode.success for episode in played if episode.success is not None]
    return Evaluation(
        float(np.mean([episode.total for episode in played])),
        float(np.std([episode.total for episode in played])),
        float(np.mean([episode.length for episode in played])),
        float(np.mean(successes)) if successes else None,
    )
