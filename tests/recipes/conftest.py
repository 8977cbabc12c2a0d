"""Short training runs, in this process and on the command line."""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from vmfer_recipes.training.collection import TransitionCollector
from vmfer_recipes.training.options import to_config
from vmfer_recipes.training.vectorized import VectorCollector

# absl, which rliable imports, keeps the stderr of the moment and closes it when Hydra sets up
# logging again. It must not be the one that pytest captures.
with contextlib.suppress(ImportError):
    from absl import logging as absl_logging

    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# A MuJoCo task whose episodes end by a time limit every 50 steps, so that short runs hold
# several and it is certain which steps lie in the middle of one.
gym.register(
    "ShortCheetah-v0",
    gym.spec("HalfCheetah-v4").entry_point,
    max_episode_steps=50,
)

ROOT = Path(__file__).parents[2]
# Later overrides win, so a test can replace any of these.
SMALL = (
    "env=InvertedPendulum-v4",
    "hidden=[16,16]",
    "batch_size=32",
    "replay.buffer_size=5000",
    "init_random_frames=60",
    "total_frames=261",
    "eval_interval=100",
    "num_eval_episodes=1",
    "log_interval=50",
    "checkpoint_interval=65",
)


def _compose(algorithm: str, run_dir: Path, *overrides: str) -> DictConfig:
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return compose(algorithm, [*SMALL, *overrides, f"run_dir={run_dir}"])


def _train(algorithm: str, run_dir: Path, *overrides: str) -> Path:
    recipe = importlib.import_module(f"vmfer_recipes.{algorithm}")
    recipe.main.__wrapped__(to_config(_compose(algorithm, run_dir, *overrides)))
    return run_dir


def _command(algorithm: str, run_dir: Path, *overrides: str) -> list[str]:
    program = str(ROOT / "recipes" / f"{algorithm}.py")
    return [sys.executable, program, *SMALL, *overrides, f"run_dir={run_dir}"]


def _run_command(
    algorithm: str, run_dir: Path, *overrides: str, **options
) -> subprocess.CompletedProcess[str]:
    command = _command(algorithm, run_dir, *overrides)
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


# Checkpoints at 40, 80, 120 and 160. The crash comes after rows of both tables (140 and 150)
# that the checkpoint of step 120 does not know of, and after the end of an episode (150).
INTERRUPTED = (
    "env.name=ShortCheetah-v0",
    "total_frames=161",
    "init_random_frames=30",
    "checkpoint_interval=40",
    "eval_interval=70",
)


SIMULATION = {"time", "qpos", "qvel", "act", "ctrl", "qacc_warmstart", "xpos", "cfrc_ext", "cvel"}


class CrashError(Exception):
    pass


@contextlib.contextmanager
def _at_step(step: int, act):
    """Does something before the step of that number, counted from where a run starts."""
    calls = itertools.count(1)

    def after_act(collect):
        def act_and_collect(self):
            if next(calls) == step:
                act()
            return collect(self)

        return act_and_collect

    with pytest.MonkeyPatch.context() as patch:
        for collector, name in ((TransitionCollector, "next"), (VectorCollector, "collect")):
            patch.setattr(collector, name, after_act(getattr(collector, name)))
        yield


def _crash(algorithm: str, run_dir: Path, *overrides: str, at: int = 155) -> Path:
    def crash():
        raise CrashError

    with _at_step(at, crash), pytest.raises(CrashError):
        _train(algorithm, run_dir, *overrides)
    return run_dir


def _table(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row.pop("steps_per_second", None)  # the one column that a clock decides
    return rows


def _assert_equal(left, right, path: str = "") -> None:
    assert type(left) is type(right), path
    if isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            _assert_equal(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), path
        for position, (one, other) in enumerate(zip(left, right, strict=True)):
            _assert_equal(one, other, f"{path}/{position}")
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype, path
        # NaN equals NaN here: the question is whether the bits are the same.
        np.testing.assert_array_equal(left.numpy(), right.numpy(), err_msg=path)
    else:
        assert left == right, path


def _checkpoint(run_dir: Path, position: int = -1):
    files = sorted((run_dir / "checkpoint").glob("step_*.pt"))
    return torch.load(files[position], weights_only=True)


def _assert_same_run(left: Path, right: Path) -> None:
    assert (left / "finished").exists()
    assert (right / "finished").exists()
    assert (left / "eval.csv").read_bytes() == (right / "eval.csv").read_bytes()
    assert _table(left / "train.csv") == _table(right / "train.csv")
    ends = []
    for run_dir in (left, right):
        checkpoint = _checkpoint(run_dir)
        # The length of train.csv depends on how many digits the speed has.
        checkpoint["parts"].pop("training")
        collector = checkpoint["parts"]["collector"]
        environments = collector.get("environments") or [collector["environment"]]
        for simulation in itertools.chain(*(each.values() for each in environments)):
            if isinstance(simulation, dict) and "qpos" in simulation:
                # MuJoCo's scratch memory, such as that of contacts, is not the run's.
                for key in simulation.keys() - SIMULATION:
                    del simulation[key]
        ends.append(checkpoint)
    _assert_equal(*ends)
    _assert_equal(*(dict(torch.load(d / "policy.pt", weights_only=True)) for d in (left, right)))


@pytest.fixture(autouse=True)
def _denormal_numbers():
    """A run may flush them to zero; other tests in this process must not."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def straight_run(tmp_path_factory):
    """``straight_run(algorithm, *overrides)``: an ``INTERRUPTED`` run that nothing interrupted."""
    done: dict[tuple[str, ...], Path] = {}

    def run(algorithm: str, *overrides: str) -> Path:
        key = (algorithm, *overrides)
        if key not in done:
            folder = tmp_path_factory.mktemp("straight") / "run"
            done[key] = _train(algorithm, folder, *INTERRUPTED, *overrides)
        return done[key]

    return run


@pytest.fixture(scope="session")
def crashed_run(tmp_path_factory):
    """``crashed_run(algorithm, *overrides)``: the same, crashed between two checkpoints.

    Shared by tests: copy it before resuming it.
    """
    done: dict[tuple[str, ...], Path] = {}

    def run(algorithm: str, *overrides: str) -> Path:
        key = (algorithm, *overrides)
        if key not in done:
            folder = tmp_path_factory.mktemp("crashed") / "run"
            done[key] = _crash(algorithm, folder, *INTERRUPTED, *overrides)
        return done[key]

    return run


@pytest.fixture(scope="session")
def at_step():
    """``with at_step(step, act)``: calls ``act`` before a run takes that step."""
    return _at_step


@pytest.fixture(scope="session")
def finish():
    """``finish(algorithm, run_dir, *overrides)``: resumes a copy of a crashed run."""

    def run(algorithm: str, run_dir: Path, *overrides: str) -> Path:
        return _train(algorithm, run_dir, *INTERRUPTED, *overrides)

    return run


@pytest.fixture(scope="session")
def assert_same_run():
    """Tables, last checkpoint and policy of two finished runs agree to the last bit."""
    return _assert_same_run


@pytest.fixture(scope="session")
def assert_equal():
    """Nested dictionaries and lists of tensors and numbers agree to the last bit."""
    return _assert_equal


@pytest.fixture(scope="session")
def checkpoint():
    """``checkpoint(run_dir, position=-1)``: the content of a checkpoint, the newest by default."""
    return _checkpoint


@pytest.fixture(scope="session")
def table():
    """``table(file)``: the rows of a CSV file, without the speed."""
    return _table


@pytest.fixture(scope="session")
def configuration():
    """``configuration(algorithm, run_dir, *overrides)``: what the command line would compose."""
    return _compose


@pytest.fixture(scope="session")
def train():
    """``train(algorithm, run_dir, *overrides)``: a small run in this process, to its end."""
    return _train


@pytest.fixture(scope="session")
def command():
    """``command(algorithm, run_dir, *overrides)``: the command line of a small run."""
    return _command


@pytest.fixture(scope="session")
def run_command():
    """``run_command(algorithm, run_dir, *overrides)``: a small run in a process of its own.

    Keywords go to ``subprocess.run``; the output is captured as text.
    """
    return _run_command
