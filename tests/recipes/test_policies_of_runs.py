"""Loaded policies act in plain environments as in the environments of their runs."""

from __future__ import annotations

import shutil
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import load_policy
from vmfer_recipes import evaluate
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment

FETCH = ("env=FetchReach-v4", "init_random_frames=60", "total_frames=111", "hidden=[16]")


@pytest.fixture(scope="module", params=["td3", "sac"])
def run_dir(request, train, tmp_path_factory):
    # Actions in [-3, 3], so that ignoring the bounds would be detected.
    return train(request.param, tmp_path_factory.mktemp("run") / "run", "total_frames=150")


@pytest.fixture(scope="module")
def goal_run(train, tmp_path_factory):
    return train("td3", tmp_path_factory.mktemp("goals") / "run", "replay=her", *FETCH)


def returns_by_evaluate(run_dir, monkeypatch, capsys, seed):
    arguments = ["evaluate.py", str(run_dir), "episodes=1", f"seed={seed}"]
    monkeypatch.setattr(sys, "argv", arguments)
    evaluate.main()
    return float(capsys.readouterr().out.split("Return ")[1].split(" ")[0])


def play(policy, env, seed):
    """Plays an episode in a plain environment."""
    observation, _ = env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        action = policy.act(observation)
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, is_over = total + float(reward), terminated or truncated
    return total


def plain(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gym.make(name)


def test_a_plain_environment_gives_the_same_return_as_evaluate(run_dir, monkeypatch, capsys):
    policy, env = load_policy(run_dir), plain("InvertedPendulum-v4")
    assert (policy.observation_size, policy.action_size) == (4, 1)
    np.testing.assert_array_equal(policy.action_low, env.action_space.low)
    np.testing.assert_array_equal(policy.action_high, env.action_space.high)
    expected = returns_by_evaluate(run_dir, monkeypatch, capsys, seed=5)
    assert play(policy, env, 5) == pytest.approx(expected, abs=0.06)


def test_a_plain_environment_of_torchrl_accepts_the_policy(run_dir):
    policy = load_policy(run_dir)
    env = GymEnv("InvertedPendulum-v4")
    env.set_seed(0)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(20, policy)
    assert rollout["action"].dtype == env.action_spec.dtype
    assert env.action_spec.is_in(rollout["action"][0])
    expected = policy.act(rollout["observation"].numpy())
    # One observation and a batch take different matrix products.
    np.testing.assert_allclose(rollout["action"].numpy(), expected, atol=1e-5)


def test_sac_samples_on_request(run_dir):
    policy = load_policy(run_dir)
    observation = np.zeros((200, 4), np.float32)
    samples = policy.act(observation, deterministic=False)
    is_random = len(np.unique(samples)) > 100
    assert is_random == (policy.kind == "gaussian")
    assert len(np.unique(policy.act(observation))) == 1


def test_a_policy_with_goals_normalizes_as_in_training(goal_run, monkeypatch, capsys):
    policy, env = load_policy(goal_run), plain("FetchReach-v4")
    assert policy.in_keys == ["observation", "desired_goal"]
    assert policy.normalization.clip == 5
    assert policy.normalization.mean.shape == (13,)
    assert float(policy.normalization.deviation.min()) > 0
    expected = returns_by_evaluate(goal_run, monkeypatch, capsys, seed=3)
    assert play(policy, env, 3) == pytest.approx(expected, abs=0.06)
    rollout = GymEnv("FetchReach-v4").rollout(3, policy)
    assert rollout["action"].shape == (3, 4)


def test_goals_without_hindsight_are_read_in_the_order_of_training(train, tmp_path):
    run_dir = train("td3", tmp_path / "run", *FETCH)
    policy = load_policy(run_dir)
    recipe = make_environment(EnvConfig("FetchReach-v4"), 0).simulator
    seen, _ = recipe.reset(seed=1)
    raw, _ = plain("FetchReach-v4").reset(seed=1)
    unit = policy.unit_action(torch.from_numpy(seen)[None])[0].numpy()
    np.testing.assert_allclose(policy.act(raw), unit, atol=1e-6)  # its bounds are -1 and 1


def test_the_policy_of_an_unfinished_run_comes_from_its_checkpoint(crashed_run, tmp_path):
    run_dir = shutil.copytree(crashed_run("td3"), tmp_path / "run")
    policy = load_policy(run_dir)
    assert policy.step == 120
    assert policy.environment == "ShortCheetah-v0"
    assert load_policy(run_dir, which="best").step in (0, 70, 140)  # its evaluations
    (run_dir / "policy_best.pt").unlink()
    with pytest.raises(RuntimeError, match=r"no policy_best\.pt"):
        load_policy(run_dir, which="best")
