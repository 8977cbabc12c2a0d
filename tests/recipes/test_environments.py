"""Environments have float32 spaces, and unsuitable ones are rejected in one line."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers.environments import Lever
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment


@pytest.mark.parametrize("name", ["InvertedPendulum-v4", "Pendulum-v1", "Humanoid-v4"])
def test_actions_are_rescaled_to_unit_range_and_observations_are_float32(name):
    env = make_environment(EnvConfig(name), seed=0)
    spec = env.action_spec
    assert spec.dtype == torch.float32
    assert (spec.space.low == -1).all()
    assert (spec.space.high == 1).all()
    rollout = env.rollout(3)
    assert rollout["observation"].dtype == torch.float32
    assert rollout["next", "observation"].dtype == torch.float32
    assert rollout["next", "reward"].dtype == torch.float32


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 1, (8, 8, 3)),
        gym.spaces.Box(0, 255, (8, 8), np.uint8),
        gym.spaces.Dict(
            {"joints": gym.spaces.Box(0, 1, (2,)), "eye": gym.spaces.Box(0, 1, (1, 2, 3))}
        ),
    ],
    ids=["rank-3", "uint8", "dictionary"],
)
def test_images_are_rejected(space, train, monkeypatch, tmp_path):
    monkeypatch.setattr(Lever, "observation_space", space)
    with pytest.raises(UserError, match="Lever-v0 has images as observations"):
        train("td3", tmp_path / "run", "env.name=Lever-v0")
    assert not (tmp_path / "run").exists()


def test_an_environment_that_cannot_be_made_is_reported_in_one_line():
    with pytest.raises(UserError, match="HalfCheetah-v3 could not be created"):
        make_environment(EnvConfig("HalfCheetah-v3"), 0)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "received"),
    [
        (np.float64, -3, 1, [-3, -1, 1]),
        (np.float16, -3, 1, [-3, -1, 1]),
        (np.int32, -4, 2, [-4, -1, 2]),
        (np.uint8, 0, 255, [0, 128, 255]),
    ],
)
def test_actions_of_any_type_are_rescaled_and_converted(dtype, low, high, received):
    env = make_environment(
        EnvConfig("Lever-v0", kwargs={"dtype": dtype, "low": low, "high": high}), 0
    )
    assert env.action_spec.dtype == torch.float32
    assert (env.action_spec.space.low == -1).all()
    assert (env.action_spec.space.high == 1).all()
    env.simulator.reset()
    for action in (-1, 0, 1):
        env.simulator.step(np.full(2, action, np.float32))
    assert env.simulator.unwrapped.received == [[value] * 2 for value in received]
    assert env.rollout(3)["action"].dtype == torch.float32


def test_hindsight_rejects_goals_that_are_not_vectors():
    class Rewarded(Lever):
        def compute_reward(self, achieved_goal, desired_goal, info): ...

    gym.register("Rewarded-v0", Rewarded)
    with pytest.raises(UserError, match="goals that are vectors, and those of Rewarded-v0"):
        make_environment(EnvConfig("Rewarded-v0"), 0, goals=True)
    del gym.registry["Rewarded-v0"]
