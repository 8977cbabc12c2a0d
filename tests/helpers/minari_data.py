"""Datasets written by the package minari."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest


class Recorded(SimpleNamespace):
    """A dataset of Minari, with the transitions that went into it: (s, a, s', r, d, truncated)."""


def _stacked(values):
    if isinstance(values[0], dict):
        return {key: _stacked([each[key] for each in values]) for key in values[0]}
    return np.array(values)


def record(root, name, dataset_id, limit, **metadata):
    """Plays six random episodes and stores them with the package minari.

    Args:
        root: Minari's folder of datasets.
        name: the environment.
        dataset_id: the id of the dataset.
        limit: the time limit of an episode.
        **metadata: passed to minari.
    """
    import minari

    env = gym.make(name, max_episode_steps=limit, disable_env_checker=True)
    env.action_space.seed(0)
    buffers, transitions = [], []
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        episode = [observation], [], [], [], []
        is_over = False
        while not is_over:
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            transitions.append((observation, action, after, reward, terminated, truncated))
            for values, value in zip(
                episode, (after, action, reward, terminated, truncated), strict=True
            ):
                values.append(value)
            observation, is_over = after, terminated or truncated
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                id=None,
                observations=_stacked(episode[0]),
                actions=np.array(episode[1]),
                rewards=np.array(episode[2]),
                terminations=np.array(episode[3]),
                truncations=np.array(episode[4]),
            )
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        metadata.setdefault("env", env)
        with warnings.catch_warnings():  # authors and descriptions are missing
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers(dataset_id, buffers, **metadata)
    return Recorded(root=root, id=dataset_id, folder=root / dataset_id, transitions=transitions)
