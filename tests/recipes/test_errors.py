"""A user error ends with one line that says what to do, and leaves no files behind."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from vmfer_recipes.config.errors import unwritable


class Unbounded(gym.Env):
    """A task whose actions have no bounds."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.fixture
def error_line(command, error_of, tmp_path, monkeypatch):
    """Starts a recipe in an empty directory and returns its one-line error message."""

    def start(*overrides, algorithm="td3", run_dir=None):
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        # Short, because a run that is accepted by mistake is trained.
        arguments = command(algorithm, run_dir or tmp_path / "run", "total_frames=70", *overrides)
        recipe = importlib.import_module(f"vmfer_recipes.{algorithm}")
        line = error_of(recipe.main, *arguments[2:])
        assert sorted(tmp_path.rglob("*")) == before, "something was written"
        return line

    return start


# Command lines, each with what its error line must contain.
ANSWERS = {
    # An unknown name, with the nearest ones.
    "env=HalfChetah-v4": ["HalfChetah-v4", "HalfCheetah-v4"],
    "env.name=HalfChetah-v4": ["HalfChetah-v4", "HalfCheetah-v4"],
    "env.name=fetchpush-v4": ["fetchpush-v4", "FetchPush-v4"],
    "sampler=vmf_rnk": ["sampler=vmf_rnk", "vmf_rank"],
    "sampler=nonsense": ["nonsense", "anti_vmf, fresh", "--help"],
    "sampler=[fresh,vmf_rank]": ["sampler=[fresh,vmf_rank]", "vmf_rank"],
    "hydra/launcher=joblob": ["joblob", "joblib"],
    "hydra/launcher=population": ["population", "-m"],
    "sede=3": ["sede", "seed"],
    "lr=0.1": ["lr", "critic_lr", "actor_lr"],
    "n_envs=4": ["n_envs", "num_envs"],
    "buffer_size=9": ["replay.buffer_size"],
    # Names of other libraries.
    "eval_freq=9": ["eval_interval"],
    "learning_starts=9": ["init_random_frames"],
    "train_freq=2": ["utd_ratio"],
    "gradient_steps=2": ["utd_ratio"],
    "max_episode_steps=50": ["env.kwargs.max_episode_steps"],
    "env.wrappers=[3]": ["env.wrappers must be a list of import paths"],
    "optimizer=sgd": ["critic_lr", "actor_lr"],
    "--env-id Hopper-v4": ["env.name"],
    # A list, a part of a name and an abbreviated number.
    "hidden=256,256": ["write hidden=[256,256]"],
    "sampler=vmf": ["vmf_direct", "vmf_pool", "vmf_power", "vmf_rank", "vmf_uncertainty"],
    "total_frames=1M": ["total_frames", "1M", "Write 1e6."],
    "eval_interval=2.5k": ["2.5k", "Write 2.5e3."],
    "+experiment=tabel1": ["tabel1", "table1"],
    "--sede=3": ["sede", "Did you mean: seed?"],
    "qqqq=1": ["qqqq", "See --help."],
    "env=qqqq": ["qqqq", "Known names: "],
    "--video": ["video", "--help"],
    # Another form.
    "experiment=table1": ["+experiment=table1"],
    "seed=0,1": ["seed=0,1", "-m"],
    "--seed=3": ["write seed=3."],
    "--seed 3": ["write seed=3."],
    "seed 3": ["write seed=3."],
    "seed = 3": ["write seed=3."],
    "--replay.buffer-size=9": ["write replay.buffer_size=9."],
    "--fast": ["write fast=true."],
    "vmf_rank": ["write sampler=vmf_rank."],
    "seed": ["write seed=<value>."],
    "--info nonsense": ["nonsense", "searchpath"],
    "sampler._target_=my_package.MyClass": ["write sampler=my_package.MyClass"],
    # Not a value of the key.
    "seed=[1": ["seed=[1"],
    "=3": ["=3"],
    "env=null": ["env=null"],
    "seed=${nowhere}": ["nowhere"],
    "sampler.mode=nonsense": ["nonsense"],
    "algorithm=sac": ["algorithm=sac"],
    "device=gpu": ["gpu", "use device=cpu"],
    "device=cuda:99": ["cuda:99", "use device=cpu"],
    "-m seed=0,x": ["seed must be a whole number"],
    "-m gamma=0.5,2": ["gamma must be a number from 0 to 1, got 2"],
    "-m sampler=uniform,nonsense": ["sampler=nonsense"],
    "utd_ratio=1/0": ["utd_ratio must be a positive number or fraction", "got '1/0'"],
    "utd_ratio=quarter": ["utd_ratio must be a positive number or fraction", "got 'quarter'"],
    # Values that do not work together.
    "replay.buffer_size=4 num_envs=8": ["num_envs=8 must be ≤ replay.buffer_size=4"],
    "alpha_init=2": ["alpha_init is not used by this recipe"],
    "sampler=uniform sampler.pool_size=5": ["sampler.pool_size is not used by this recipe"],
    "replay.her_ratio=0.5": ["replay.her_ratio is not used by this recipe"],
    "keep_checkpoints_at=[60,71,80]": ["keep_checkpoints_at=71", "total_frames=70"],
    "total_frames=50 init_random_frames=60": ["total_frames=50", "init_random_frames=60"],
    "sampler=vmf_weighted": ["use sampler=fresh weighting=1"],
    "sampler=fresh weighting=4 num_critics=1": ["weighting=4", "num_critics=1"],
    "sampler=vmf_rank num_critics=1": ["sampler=vmf_rank", "num_critics=1"],
    "sampler=vmf_rank sampler.power=2": ["sampler.power=2 has no effect", "sampler.mode=rank"],
}
OTHER_RECIPES = {
    ("sac", "actor_objective=mean"): ["actor_objective is not used by this recipe"],
    ("sac", "sampler=odpr dataset=runs/a"): ["sampler=odpr", "use td3_bc"],
    ("sac", "share=0.3"): ["share=0.3", "without dataset="],
    ("sac", "dataset=runs/a replay=per"): ["replay=per", "use replay=uniform"],
    ("sac", "ent_coef=0.2"): ["alpha_init"],
    ("sac", "alpha=0.2"): ["alpha_init"],
    ("sac", "directions=tanh"): ["directions must be action or pre_tanh, got 'tanh'"],
    ("sac", "sampler=vmf_power sampler.power=nan"): ["sampler.power must be a number from"],
    ("sac", "sampler=vmf_direct entropy_gradient=true"): ["entropy_gradient=true"],
    ("redq", "subset_size=10"): ["subset_size=10", "num_critics=10"],
    ("redq", "num_critics=1"): ["num_critics must be a whole number from 2"],
    ("redq", "replay=per"): ["importance weights", "use replay.beta=0"],
    ("redq", "target_entropy=mpbo"): ["target_entropy must be auto, mbpo"],
    ("crossq", "replay=per_rank"): ["importance weights", "use replay.beta=0"],
    ("crossq", "tau=0.01"): ["tau=0.01", "no target networks"],
    ("crossq", "layer_norm=true"): ["layer_norm=true", "batch_renorm=true"],
    ("crossq", "network=my_package.Net"): ["use critic_network=mlp", "batch_renorm=false"],
    ("tqc", "dropped_quantiles=25"): ["dropped_quantiles=25", "num_quantiles=25"],
    ("tqc", "num_quantiles=5 env=Hopper-v4"): ["dropped_quantiles=5", "num_quantiles=5"],
    ("tqc", "replay=lap"): ["replay=lap", "use replay=per"],
}


@pytest.mark.parametrize(
    ("algorithm", "arguments"), [*(("td3", arguments) for arguments in ANSWERS), *OTHER_RECIPES]
)
def test_a_mistake_is_answered_in_one_line(error_line, algorithm, arguments):
    line = error_line(*arguments.split(), algorithm=algorithm)
    named = ANSWERS[arguments] if algorithm == "td3" else OTHER_RECIPES[algorithm, arguments]
    assert [part for part in named if part not in line] == []
    listed = re.search(r"(?:Did you mean: |Known names: )(.*?)[?;]", line)
    assert listed is None or len({*listed[1].split(", ")} - {"..."}) <= 3


def test_a_float_in_a_user_file_suggests_the_integer(error_line, tmp_path):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nlog_interval: 1e6\n"
    )
    line = error_line("--config-dir", str(tmp_path / "own"), "+experiment=mine")
    assert "experiment/mine.yaml: log_interval must be a whole number" in line
    assert "Write 1000000." in line


@pytest.mark.parametrize(
    ("launcher", "plugin"), [("ray", "hydra_ray_launcher"), ("slurm", "hydra_submitit_launcher")]
)
def test_a_missing_launcher_names_the_extra_to_install(error_line, launcher, plugin):
    if importlib.util.find_spec(f"hydra_plugins.{plugin}"):
        pytest.skip(f"{plugin} is installed")
    assert error_line(f"hydra/launcher={launcher}").endswith(f"pip install '.[{launcher}]'.")


@pytest.mark.parametrize("env", ["CartPole-v1", "Unbounded-v0"])
def test_a_task_with_other_actions_is_rejected(error_line, monkeypatch, env):
    monkeypatch.setitem(
        gym.registry, "Unbounded-v0", EnvSpec("Unbounded-v0", entry_point=Unbounded)
    )
    line = error_line(f"env.name={env}")
    assert env in line
    assert "choose another environment" in line


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


def test_a_run_dir_that_cannot_be_made_is_rejected(error_line, tmp_path):
    (tmp_path / "file").touch()
    line = error_line(run_dir=tmp_path / "file" / "run")
    assert str(tmp_path / "file" / "run") in line
    assert "choose another run_dir" in line


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.EACCES, "permission"), (errno.EROFS, "permission"), (errno.ENOSPC, "free disk space")],
)
def test_a_failed_write_suggests_a_remedy_for_its_cause(number, cure):
    line = str(unwritable("runs/a", OSError(number, os.strerror(number))))
    assert "runs/a" in line
    assert cure in line
    assert ("free disk space" in line) == (number == errno.ENOSPC)


@pytest.mark.parametrize("logger", ["wandb", "tensorboard"])
def test_a_logger_that_is_not_installed_is_rejected(error_line, monkeypatch, logger):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = error_line(f"logger={logger}")
    assert f"pip install {logger}" in line
    assert "logger=csv" in line
