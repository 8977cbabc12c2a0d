"""Saved policies: evaluate.py plays them, and they act alike in plain environments."""

from __future__ import annotations

import functools
import shutil
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torchrl.envs import GymEnv

from torchrl_vmfer import load_policy
from vmfer_recipes import evaluate
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment

SHORT = ("total_frames=70", "num_eval_episodes=3", "eval_interval=1000", "seed=3")
FETCH = ("env=FetchReach-v4", "init_random_frames=60", "total_frames=111", "hidden=[16]")


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """``trained(algorithm, *overrides)``: a finished run. Tests share it."""
    return functools.cache(
        lambda *words: train(words[0], tmp_path_factory.mktemp("run"), *words[1:])
    )


@pytest.fixture(params=["td3", "sac"])
def run_dir(request, trained):
    return trained(request.param, *SHORT)


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained("td3", *SHORT), tmp_path / "run")


@pytest.fixture
def play(execute, capsys):
    """``play(*arguments)``: what the program prints."""

    def start(*arguments):
        execute(evaluate.main, *map(str, arguments))
        return capsys.readouterr().out

    return start


def plain(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gym.make(name)


def play_plainly(policy, env, seed):
    """Plays an episode in a plain environment."""
    observation, _ = env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        action = policy.act(observation)
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, is_over = total + float(reward), terminated or truncated
    return total


def assert_plays_as_evaluated(run_dir, env, play):
    said = play(run_dir, "episodes=1", "seed=5")
    expected = float(said.split("Return ")[1].split(" ")[0])
    assert play_plainly(load_policy(run_dir), env, 5) == pytest.approx(expected, abs=0.06)


def test_the_same_seeds_reproduce_the_last_evaluation_of_the_run(run_dir, play, table):
    last = {key: float(value or 0) for key, value in table(run_dir / "eval.csv")[-1].items()}
    expected = (
        f"Return {last['return_mean']:.1f} ± {last['return_std']:.1f} over 3 episodes of "
        f"{last['episode_length']:.0f} steps on average."
    )
    first, second = play(run_dir, "episodes=3", "seed=1000003").splitlines()
    assert first == f"Evaluating {run_dir / 'policy.pt'}, step 70, on InvertedPendulum-v4."
    assert second == expected


# The actions are in [-3, 3], so that ignoring the bounds would be detected.
def test_a_plain_environment_gives_the_same_return_as_evaluate(run_dir, play):
    policy, env = load_policy(run_dir), plain("InvertedPendulum-v4")
    assert (policy.observation_size, policy.action_size) == (4, 1)
    np.testing.assert_array_equal(policy.action_low, env.action_space.low)
    np.testing.assert_array_equal(policy.action_high, env.action_space.high)
    assert_plays_as_evaluated(run_dir, env, play)


def test_sac_samples_on_request(run_dir):
    policy = load_policy(run_dir)
    observation = np.zeros((200, 4), np.float32)
    samples = policy.act(observation, deterministic=False)
    is_random = len(np.unique(samples)) > 100
    assert is_random == (policy.kind == "gaussian")
    assert len(np.unique(policy.act(observation))) == 1


def test_a_policy_with_goals_normalizes_as_in_training(trained, play):
    goal_run = trained("td3", "replay=her", *FETCH)
    policy = load_policy(goal_run)
    assert policy.in_keys == ["observation", "desired_goal"]
    assert policy.normalization.clip == 5
    assert policy.normalization.mean.shape == (13,)
    assert float(policy.normalization.deviation.min()) > 0
    assert_plays_as_evaluated(goal_run, plain("FetchReach-v4"), play)
    env = GymEnv("FetchReach-v4")
    rollout = env.rollout(3, policy)
    assert rollout["action"].shape == (3, 4)
    assert env.action_spec.is_in(rollout["action"][0])


def test_goals_without_hindsight_are_read_in_the_order_of_training(trained):
    policy = load_policy(trained("td3", *FETCH))
    recipe = make_environment(EnvConfig("FetchReach-v4"), 0).simulator
    seen, _ = recipe.reset(seed=1)
    raw, _ = plain("FetchReach-v4").reset(seed=1)
    unit = policy.unit_action(torch.from_numpy(seen)[None])[0].numpy()
    np.testing.assert_allclose(policy.act(raw), unit, atol=1e-6)  # its bounds are -1 and 1


def test_a_configuration_does_not_read_environment_variables(error_of, copy, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    config = OmegaConf.load(copy / "config.yaml")
    config.env.name = "${oc.env:TOKEN}"
    OmegaConf.save(config, copy / "config.yaml")
    assert "secret" not in error_of(evaluate.main, copy)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_the_policy_of_an_unfinished_run_comes_from_its_newest_readable_checkpoint(
    algorithm, crashed_run, play, tmp_path
):
    run_dir = shutil.copytree(crashed_run(algorithm), tmp_path / "run")
    newest = sorted((run_dir / "checkpoint").glob("step_*.pt"))[-1]
    assert f"Evaluating {newest}, step 120, on ShortCheetah-v0." in play(run_dir, "episodes=1")
    assert load_policy(run_dir).environment == "ShortCheetah-v0"
    assert load_policy(run_dir, which="best").step in (0, 70, 140)  # its evaluations
    newest.write_bytes(newest.read_bytes()[:-100])
    assert ", step 80, on" in play(run_dir, "episodes=1")


def test_the_best_policy_is_used_on_request(copy, play, error_of):
    (copy / "policy_best.pt").unlink()
    assert "policy_best.pt" in error_of(evaluate.main, copy, "policy=best")
    with pytest.raises(RuntimeError, match=r"no policy_best\.pt"):
        load_policy(copy, which="best")
    best = torch.load(copy / "policy.pt", weights_only=True) | {"step": 40}
    torch.save(best, copy / "policy_best.pt")
    assert "policy_best.pt, step 40," in play(copy, "policy=best", "episodes=1")
    assert "policy.pt, step 70," in play(copy, "episodes=1")


def rename_task(run_dir):
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("InvertedPendulum-v4", "Hopper-v4"))


def truncate_policy(run_dir):
    (run_dir / "policy.pt").write_bytes((run_dir / "policy.pt").read_bytes()[:1500])


def remove_policies(run_dir):
    (run_dir / "policy.pt").unlink()
    shutil.rmtree(run_dir / "checkpoint")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "has no config.yaml: give a run, such as"),
        (lambda run_dir: (run_dir / "config.yaml").write_text("env: ["), "config.yaml is not"),
        (rename_task, "observations of size 4"),
        (truncate_policy, "policy.pt cannot be read"),
        (remove_policies, "policy.pt"),
    ],
)
def test_a_damaged_run_is_rejected(error_of, copy, damage, message):
    damage(copy)
    assert message in error_of(evaluate.main, copy)


def test_the_runs_of_a_folder_are_listed(error_of, copy, play):
    other = shutil.copytree(copy, copy.parent / "other")
    line = error_of(evaluate.main, copy.parent)
    assert f"give one of {other}, {copy}." in line
    assert play(f"run={copy}", "episodes=1") == play(copy, "episodes=1")


def test_a_video_is_playable_or_the_missing_backend_is_named(copy, monkeypatch, run_program):
    # Set and deleted, so that the recipe's choice is undone afterwards.
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("MUJOCO_GL")
    code, output, error = run_program(evaluate.main, copy, "episodes=1", "video=true")
    if code:
        assert code == 2
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert "apt-get install" in error
        assert not (copy / "video.mp4").exists()
    else:
        imageio = pytest.importorskip("imageio.v3")
        assert str(copy / "video.mp4") in output
        frames = imageio.imread(copy / "video.mp4", plugin="pyav")
        assert len(frames) > 1
        assert frames.std() > 0
