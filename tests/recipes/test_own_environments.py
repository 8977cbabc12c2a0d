"""Environments, wrappers and arguments from outside the repository."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers.saved_rows import rows_in
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.evaluate import main as evaluate
from vmfer_recipes.td3 import main as td3

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_environment" / "my_tasks.py"
WINDY = (
    "env.name=my_tasks:Point-v0",
    "env.kwargs.gain=0.2",
    "env.wrappers=[my_tasks.Wind]",
    "env.normalize_observations=true",
)
COMPOSED = tuple(each.replace("env.kwargs", "++env.kwargs") for each in WINDY)  # Hydra's own form


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Makes a directory outside the repository, with the user's module, the current one."""
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]
    for name in ("Point-v0", "Endless-v0"):
        gym.registry.pop(name, None)


def test_example_trains_and_is_evaluated_from_its_own_directory(elsewhere, execute, capsys):
    small = ("total_frames=150", "init_random_frames=100", "num_eval_episodes=1", "num_envs=2")
    execute(td3, *WINDY, *small)
    run_dir = "runs/td3/my_tasks-Point-v0/uniform-vmf_uncertainty/seed0"
    assert (elsewhere / run_dir / "finished").exists()
    execute(evaluate, run_dir, "episodes=2")
    assert "over 2 episodes" in capsys.readouterr().out


def test_arguments_reach_the_environment(elsewhere):
    for gain in (0.2, 0.5):
        env = make_environment(EnvConfig("my_tasks:Point-v0", kwargs={"gain": gain}), 0)
        before = env.simulator.reset()[0]
        after = env.simulator.step(np.ones(2, np.float32))[0]
        np.testing.assert_allclose(after - before, gain, rtol=1e-5)


def test_wrappers_are_applied_in_order(elsewhere):
    (elsewhere / "my_wrappers.py").write_text(
        "import gymnasium as gym\n"
        "class Add(gym.RewardWrapper):\n"
        "    def reward(self, reward): return reward + 1\n"
        "class Double(gym.RewardWrapper):\n"
        "    def reward(self, reward): return reward * 2\n"
    )
    name, action = "my_tasks:Point-v0", np.zeros(2, np.float32)
    paths = ["my_wrappers.Add", "my_wrappers.Double"]
    rewards = []
    for wrappers in (paths, paths[::-1]):
        env = make_environment(EnvConfig(name, wrappers=wrappers), 0)
        env.simulator.reset()
        rewards.append(env.simulator.step(action)[1])
    np.testing.assert_allclose(rewards, [0, -1], atol=1e-6)  # the distance is 1


def test_wrappers_have_arguments(elsewhere, execute, capsys):
    limit = "{_target_: gymnasium.wrappers.TimeLimit, max_episode_steps: 7}"
    small = ("total_frames=40", "init_random_frames=30", "num_eval_episodes=1")
    execute(td3, WINDY[0], f"env.wrappers=[my_tasks.Wind, {limit}]", *small, "run_dir=run")
    execute(evaluate, "run")
    assert "episodes of 7 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"name": "my_tasks:Piont-v0"}, ["my_tasks registers no environment", "Point-v0"]),
        ({"name": "nowhere:Point-v0"}, ["nowhere cannot be imported", "run the command from"]),
        ({"name": "my_tasks:Zzz"}, ["registers no environment 'Zzz'", "gymnasium.register("]),
        (
            {"name": "my_other:Point-v0"},
            ["the module my_other cannot be imported", "from the directory that contains it"],
        ),
        ({"name": "Qqqqqqqq"}, ["no environment 'Qqqqqqqq'", "env.name=my_module:Qqqqqqqq"]),
        ({"kwargs": {"gian": 1}}, ["unexpected keyword argument 'gian'", "env.kwargs"]),
        ({"wrappers": ["my_tasks.Point"]}, ["env.wrappers=my_tasks.Point", "Wrapper"]),
        ({"wrappers": ["my_tasks.Breeze"]}, ["my_tasks has no such name"]),
        ({"wrappers": ["Wind"]}, ["must name a module and a class"]),
        ({"wrappers": ["gymnasium.wrappers.TimeLimit"]}, ["TimeLimit cannot wrap", "TypeError"]),
        ({"wrappers": [{"steps": 50}]}, ["{'steps': 50}", "_target_: my_package.MyWrapper"]),
        (
            {"wrappers": [{"_target_": "gymnasium.wrappers.TimeLimit", "steps": 50}]},
            ["TimeLimit cannot wrap", "{'steps': 50}", "unexpected keyword argument"],
        ),
        (
            {"wrappers": ["gymnasium.wrappers.NormalizeObservation"]},
            ["another normalization than training", "env.normalize_observations=true"],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_user_errors_are_explained_in_one_line(settings, parts, elsewhere):
    with pytest.raises(UserError) as error:
        make_environment(EnvConfig(**{"name": "my_tasks:Point-v0"} | settings), 0)
    message = str(error.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert message.count("-v") <= 5  # a few names, not the entire registry


def test_task_whose_episodes_do_not_end_is_reported(elsewhere, train):
    class Endless(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,))
        action_space = gym.spaces.Box(-1, 1, (1,))

        def reset(self, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 0.0, False, False, {}

    gym.register("Endless-v0", Endless)
    with pytest.raises(
        UserError, match=r"within max_eval_steps=10000.*env\.kwargs\.max_episode_steps=1000"
    ):
        train("td3", elsewhere / "run", "env.name=Endless-v0")
    limited = ("env.name=Endless-v0", "++env.kwargs.max_episode_steps=20", "total_frames=66")
    assert (train("td3", elsewhere / "limited", *limited) / "finished").exists()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("algorithm", "fast"), [("sac", "true"), pytest.param("td3", "false", marks=pytest.mark.slow)]
)
def test_wrapper_with_state_and_statistics_of_all_frames_resume_exactly(
    algorithm, fast, assert_resumes_exactly, checkpoint
):
    options = (*COMPOSED, f"fast={fast}", "total_frames=131", "checkpoint_interval=65")
    parts = checkpoint(assert_resumes_exactly(algorithm, *options))["parts"]
    seen = rows_in(parts["replay"])["observation"].double()  # not normalized
    statistics = parts["observations"]
    assert statistics["observation.count"] == len(seen) == 131
    torch.testing.assert_close(statistics["observation.mean"], seen.mean(0))
    variance = statistics["observation.squares"] / 131
    torch.testing.assert_close(variance, seen.var(0, correction=0))
