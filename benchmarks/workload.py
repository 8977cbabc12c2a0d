"""What every contender of ``throughput.py`` computes, without a dependency on PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np


class Size(NamedTuple):
    """A task, and the sizes of networks and batches."""

    task: str
    hidden: list[int]
    batch: int


SIZES = {
    "large": Size("HalfCheetah-v4", [256, 256], 256),
    "small": Size("Reacher-v5", [64, 64], 64),
}
CAPACITY = 1_000_000
LEARNING_RATE = {"td3": 1e-3, "sac": 3e-4}


def real_transitions(task: str, count: int) -> dict[str, np.ndarray]:
    """Transitions of a random policy, repeated."""
    env = gym.make(task)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    rows: dict[str, list] = {name: [] for name in ("observation", "action", "next", "reward")}
    for _ in range(1000):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(rows, (observation, action, following, reward), strict=True):
            rows[name].append(np.float32(value))
        observation = env.reset()[0] if terminated or truncated else following
    return {
        name: np.resize(np.stack(values), (count, *np.shape(values[0])))
        for name, values in rows.items()
    }


def peer_loop(
    make: Callable[..., Any], algorithm: str, filled: int, size: Size
) -> Callable[[int], Any]:
    """The training loop of an algorithm of Stable-Baselines3 or SBX."""
    model = make(
        "MlpPolicy",
        gym.make(size.task),
        learning_rate=LEARNING_RATE[algorithm],
        buffer_size=CAPACITY,
        batch_size=size.batch,
        learning_starts=0,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": size.hidden},
        device="cpu",
        seed=0,
    )
    buffer, rows = model.replay_buffer, real_transitions(size.task, filled)
    for name, values in {
        "observations": rows["observation"],
        "next_observations": rows["next"],
        "actions": rows["action"],
        "rewards": rows["reward"],
    }.items():
        getattr(buffer, name)[:filled, 0] = values
    buffer.pos, buffer.full = filled % CAPACITY, filled == CAPACITY
    return lambda steps: model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
