"""A user error ends with one line that says what to do, and leaves no files behind."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import sys

import gymnasium as gym
import numpy as np
import pytest

from vmfer_recipes import td3
from vmfer_recipes.config.errors import unwritable


class Unbounded(gym.Env):
    """A task whose actions have no bounds."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.fixture
def error_line(command, tmp_path, monkeypatch, capsys):
    """Starts TD3 in an empty directory and returns its one-line error message."""

    def start(*overrides, run_dir=None):
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        # Short, because a run that is accepted by mistake is trained.
        arguments = command("td3", run_dir or tmp_path / "run", "total_frames=70", *overrides)[1:]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as exit_:
            td3.main()
        lines = capsys.readouterr().err.splitlines()
        assert exit_.value.code == 2
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        assert sorted(tmp_path.rglob("*")) == before, "something was written"
        return lines[0]

    return start


@pytest.mark.parametrize(
    ("override", "named"),
    [
        pytest.param("env=HalfChetah-v4", ["HalfChetah-v4", "HalfCheetah-v4"], id="env"),
        pytest.param("env.name=HalfChetah-v4", ["HalfChetah-v4", "HalfCheetah-v4"], id="env.name"),
        pytest.param("sampler=vmf_rnk", ["sampler=vmf_rnk", "vmf_rank"], id="sampler"),
        pytest.param(
            "sampler=nonsense", ["nonsense", "anti_vmf, fresh", "--help"], id="no-near-one"
        ),
        pytest.param("replay=per_rnk", ["replay=per_rnk", "per_rank"], id="replay"),
        pytest.param("logger=csvv", ["logger=csvv", "csv"], id="logger"),
        pytest.param("hydra/launcher=joblob", ["joblob", "joblib"], id="launcher"),
        pytest.param("sede=3", ["sede", "seed"], id="key"),
        pytest.param("lr=0.1", ["lr", "critic_lr", "actor_lr"], id="lr"),
        pytest.param("learning_rate=0.1", ["critic_lr", "actor_lr"], id="learning_rate"),
        pytest.param("n_envs=4", ["n_envs", "num_envs"], id="n_envs"),
        pytest.param("buffer_size=9", ["replay.buffer_size"], id="last part of a key"),
        pytest.param("experiment=table1", ["+experiment=table1"], id="experiment"),
        pytest.param("+experiment=tabel1", ["tabel1", "table1"], id="no experiment"),
        pytest.param("seed=0,1", ["seed=0,1", "-m"], id="sweep without -m"),
        pytest.param("--sede=3", ["--sede=3", "seed", "key=value"], id="option"),
        pytest.param("--seed=3", ["write seed=3."], id="dashes"),
        pytest.param("-seed=3", ["write seed=3."], id="one dash"),
        pytest.param("--env=Hopper-v4", ["write env=Hopper-v4."], id="dashes of a group"),
        pytest.param("--replay.buffer-size=9", ["write replay.buffer_size=9."], id="dashed name"),
        pytest.param("--fast", ["write fast=true."], id="flag"),
        pytest.param("vmf_rank", ["write sampler=vmf_rank."], id="choice without its group"),
        pytest.param("seed", ["write seed=<value>."], id="no value"),
        pytest.param("--video", ["--video", "--help"], id="another program's option"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_ones(error_line, override, named):
    line = error_line(override)
    assert [name for name in named if name not in line] == []


@pytest.mark.parametrize("override", ["qqqq=1", "env=qqqq", "sampler=qqqq", "seeed=1", "repla=x"])
def test_an_unknown_name_lists_a_few_alternatives(error_line, override):
    line = error_line(override)
    names = re.search(r"(?:Did you mean: |Known names: )(.*?)[?;]", line)
    assert names is None or len(set(names[1].split(", ")) - {"..."}) <= 3
    assert len(line) < 180


@pytest.mark.parametrize("words", [("--seed", "3"), ("seed", "3"), ("seed", "=", "3")])
def test_a_value_separated_from_its_key_suggests_the_correct_form(error_line, words):
    assert error_line(*words).endswith("write seed=3.")


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        (("seed=0,x",), "seed must be a whole number"),
        (("gamma=0.5,2",), "gamma must be a number from 0 to 1, got 2"),
        (("sampler=uniform,nonsense",), "There is no sampler=nonsense"),
    ],
)
def test_every_value_of_a_sweep_is_checked_before_the_first_run(error_line, sweep, named):
    assert named in error_line("-m", *sweep)


def test_a_float_in_a_user_file_suggests_the_integer(error_line, tmp_path):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nlog_interval: 1e6\n"
    )
    line = error_line("--config-dir", str(tmp_path / "own"), "+experiment=mine")
    assert "experiment/mine.yaml: log_interval must be a whole number" in line
    assert "Write 1000000." in line


@pytest.mark.parametrize(
    "overrides",
    [("alpha_init=2",), ("sampler=uniform", "sampler.pool_size=5"), ("replay.her_ratio=0.5",)],
    ids=["another recipe's", "another sampler's", "another replay's"],
)
def test_a_key_of_another_recipe_or_choice_is_explained(error_line, overrides):
    key = overrides[-1].partition("=")[0]
    assert f"{key} is not used by this recipe" in error_line(*overrides)


@pytest.mark.parametrize(
    ("launcher", "plugin"), [("ray", "hydra_ray_launcher"), ("slurm", "hydra_submitit_launcher")]
)
def test_a_missing_launcher_names_the_extra_to_install(error_line, launcher, plugin):
    if importlib.util.find_spec(f"hydra_plugins.{plugin}"):
        pytest.skip(f"{plugin} is installed")
    assert error_line(f"hydra/launcher={launcher}").endswith(f"pip install '.[{launcher}]'.")


def test_a_discrete_action_space_is_rejected(error_line):
    line = error_line("env.name=CartPole-v1")
    assert "CartPole-v1" in line
    assert "Discrete(2)" in line
    assert "choose another environment" in line


def test_unbounded_actions_are_rejected(error_line):
    gym.register("Unbounded-v0", Unbounded)
    try:
        line = error_line("env.name=Unbounded-v0")
    finally:
        del gym.registry["Unbounded-v0"]
    assert "Unbounded-v0" in line
    assert "choose another environment" in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("keep_checkpoints_at=[60,71,80]", "keep_checkpoints_at=71 is after the last step"),
        ("total_frames=50 init_random_frames=60", "total_frames=50 leaves no steps"),
        ("sampler=vmf_rank num_critics=1", "sampler=vmf_rank needs several critics"),
        ("sampler.mode=nonsense", "nonsense"),
        ("sampler._target_=nonsense", "write sampler=my_package.MyClass"),
        ("algorithm=sac", "algorithm=sac does not change the algorithm"),
    ],
)
def test_values_that_do_not_work_are_rejected(error_line, overrides, said):
    assert said in error_line(*overrides.split())


WRONG_TYPES = (
    *("total_frames=many", "total_frames=1.5", "gamma=high", "policy_delay=long", "hidden=[wide]"),
    *("hidden=16", "replay.buffer_size=large", "sampler.smoothing=much"),
)
OUT_OF_RANGE = (
    *("total_frames=-1", "seed=-1", "batch_size=0", "num_critics=0", "utd_ratio=0", "threads=0"),
    *("gamma=-1", "gamma=2", "tau=2", "critic_lr=-1", "target_noise=-1", "hidden=[0]"),
    *("replay.buffer_size=0", "sampler.smoothing=7", "sampler.initial_factor=-1"),
)


@pytest.mark.parametrize("override", [*WRONG_TYPES, *OUT_OF_RANGE])
def test_a_wrong_value_is_rejected_with_its_key(error_line, override):
    key, value = override.split("=")
    line = error_line(override)
    assert key.split(".")[-1] in line
    assert value.strip("[]") in line


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:99"])
def test_an_unavailable_device_is_rejected(error_line, device):
    line = error_line(f"device={device}")
    assert device in line
    assert "use device=cpu" in line


@pytest.mark.parametrize("override", ["seed=[1", "=3", "env=null", "seed=${nowhere}"])
def test_a_malformed_override_is_rejected(error_line, override):
    assert override.strip("${}").split("=")[-1] in error_line(override)


def test_a_run_dir_that_cannot_be_made_is_rejected(error_line, tmp_path):
    (tmp_path / "file").touch()
    line = error_line(run_dir=tmp_path / "file" / "run")
    assert str(tmp_path / "file" / "run") in line
    assert "choose another run_dir" in line
    assert "free disk space" not in line


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.EACCES, "permission"), (errno.EROFS, "permission"), (errno.ENOSPC, "free disk space")],
)
def test_a_failed_write_suggests_a_remedy_for_its_cause(number, cure):
    line = str(unwritable("runs/a", OSError(number, os.strerror(number))))
    assert "runs/a" in line
    assert cure in line
    assert ("free disk space" in line) == (number == errno.ENOSPC)


@pytest.mark.parametrize(
    "logger",
    ["wandb", "tensorboard"],
)
def test_a_logger_that_is_not_installed_is_rejected(error_line, monkeypatch, logger):
    monkeypatch.setitem(sys.modules, logger, None)
    line = error_line(f"logger={logger}")
    assert f"pip install {logger}" in line
    assert "logger=csv" in line
