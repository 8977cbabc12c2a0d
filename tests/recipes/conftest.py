"""Fixtures for short training runs, in this process and on the command line."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from matplotlib.figure import Figure
from omegaconf import DictConfig

import vmfer_recipes.config.algorithms  # noqa: F401  # registers their configurations
from vmfer_recipes import td3_bc
from vmfer_recipes.collection.collectors import SingleCollector, WorkersCollector
from vmfer_recipes.config.training import to_config
from vmfer_recipes.run import session
from vmfer_recipes.run.checkpoints import load_checkpoint
from vmfer_recipes.run.curve import draw_learning_curve

# absl, which rliable imports, keeps a reference to the current stderr and closes it when Hydra
# configures logging again. It must not be the stderr that pytest captures.
with contextlib.suppress(ImportError):
    from absl import logging as absl_logging

    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# A MuJoCo task with a time limit of 50 steps: short runs contain several episodes, and it is known
# which steps lie in the middle of one.
gym.register(
    "ShortCheetah-v0",
    gym.spec("HalfCheetah-v4").entry_point,
    max_episode_steps=50,
)

ROOT = Path(__file__).parents[2]
# Later overrides take precedence, so a test can replace any of these.
SMALL = (
    *("env=InvertedPendulum-v4", "hidden=[16,16]", "batch_size=32", "replay.buffer_size=5000"),
    *("init_random_frames=60", "total_frames=261", "eval_interval=100", "num_eval_episodes=1"),
    *("log_interval=50", "checkpoint_interval=65"),
)
# Checkpoints at 40, 80, 120 and 160. The crash comes after rows of both tables (140 and 150)
# that the checkpoint of step 120 does not include, and after the end of an episode (150).
INTERRUPTED = (
    *("env.name=ShortCheetah-v0", "total_frames=161", "init_random_frames=30"),
    *("checkpoint_interval=40", "eval_interval=70"),
)


def offered(function: Callable) -> Callable:
    """Offers a function to tests as the fixture of its name."""
    fixture = pytest.fixture(scope="session", name=function.__name__)
    globals()[f"_{function.__name__}_fixture"] = fixture(lambda: function)
    return function


@functools.cache  # composing takes a third of the time of a short run
def _compose_anywhere(algorithm: str, *overrides: str) -> DictConfig:
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return compose(algorithm, [*SMALL, *overrides])


@offered
def configuration(algorithm: str, run_dir: Path, *overrides: str) -> DictConfig:
    """Composes a configuration like the command line."""
    cfg = _compose_anywhere(algorithm, *overrides).copy()
    cfg.run_dir = str(run_dir)
    return cfg


@offered
def agent_of(algorithm: str, run_dir: Path, *overrides: str, frames: int = 0):
    """The agent of a run, with some collected transitions."""
    cfg = to_config(configuration(algorithm, run_dir, *overrides))
    agent = importlib.import_module(f"vmfer_recipes.{algorithm}").make_agent(cfg)
    if agent.collector is not None:
        for _ in range(frames):
            agent.collector.collect()
    return agent


@offered
def train(algorithm: str, run_dir: Path, *overrides: str) -> Path:
    """A small, complete run in this process."""
    recipe = importlib.import_module(f"vmfer_recipes.{algorithm}")
    recipe.main.__wrapped__(to_config(configuration(algorithm, run_dir, *overrides)))
    return run_dir


@offered
def command(algorithm: str, run_dir: Path, *overrides: str) -> list[str]:
    """The command line of a small run."""
    program = str(ROOT / "recipes" / f"{algorithm}.py")
    return [sys.executable, program, *SMALL, *overrides, f"run_dir={run_dir}"]


@offered
def run_command(
    algorithm: str, run_dir: Path, *overrides: str, **options
) -> subprocess.CompletedProcess[str]:
    """A small run in a separate process. The options are those of ``subprocess.run``."""
    words = command(algorithm, run_dir, *overrides)
    return subprocess.run(words, capture_output=True, text=True, timeout=600, **options)


class CrashError(Exception):
    pass


@offered
@contextlib.contextmanager
def at_step(step: int, act):
    """Calls a function before the given step, counted from the start of a run."""
    calls = itertools.count(1)

    def after_act(function):
        def act_and_call(*args):
            if next(calls) == step:
                act()
            return function(*args)

        return act_and_call

    with pytest.MonkeyPatch.context() as patch:
        for collector in (SingleCollector, WorkersCollector):
            patch.setattr(collector, "collect", after_act(collector.collect))
        # Offline, a step is an update of the critics.
        patch.setattr(td3_bc, "update_critics", after_act(td3_bc.update_critics))
        yield


@offered
@contextlib.contextmanager
def failing_at(step: int, error: type[BaseException] = CrashError):
    """Raises an error before the given step of a run, and expects it."""

    def fail():
        raise error

    with at_step(step, fail), pytest.raises(error) as caught:
        yield caught


@offered
def crash(algorithm: str, run_dir: Path, *overrides: str, at: int = 155) -> Path:
    """A run that fails before a step."""
    with failing_at(at):
        train(algorithm, run_dir, *overrides)
    return run_dir


@offered
def finish(algorithm: str, run_dir: Path, *overrides: str) -> Path:
    """Resumes a copy of a crashed run."""
    return train(algorithm, run_dir, *INTERRUPTED, *overrides)


@pytest.fixture(scope="session")
def straight_run(tmp_path_factory):
    """``straight_run(algorithm, *overrides)``: an ``INTERRUPTED`` run without the interruption."""

    @functools.cache
    def run(algorithm: str, *overrides: str) -> Path:
        return finish(algorithm, tmp_path_factory.mktemp("straight") / "run", *overrides)

    return run


@pytest.fixture(scope="session")
def crashed_run(tmp_path_factory):
    """``crashed_run(algorithm, *overrides)``: the same run, crashed between two checkpoints.

    It is shared by tests: copy it before resuming it.
    """

    @functools.cache
    def run(algorithm: str, *overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("crashed") / "run"
        return crash(algorithm, folder, *INTERRUPTED, *overrides)

    return run


@pytest.fixture
def assert_crashed_run_resumes_exactly(straight_run, crashed_run, tmp_path, capfd):
    """``...(algorithm, *overrides)``: the ``crashed_run`` ends like the ``straight_run``."""

    def check(algorithm: str, *overrides: str) -> None:
        run_dir = shutil.copytree(crashed_run(algorithm, *overrides), tmp_path / "run")
        straight = straight_run(algorithm, *overrides)
        capfd.readouterr()
        finish(algorithm, run_dir, *overrides)
        # Starting from step 0 would give the same result, so check that it did not.
        assert "at step 120." in capfd.readouterr().err
        assert_same_run(straight, run_dir)

    return check


@pytest.fixture
def assert_resumes_exactly(tmp_path):
    """``assert_resumes_exactly(algorithm, *overrides, at, saved)``: crashes a run and resumes it.

    ``saved`` is the step of its last checkpoint. Returns the same run without the crash.
    """

    def check(algorithm: str, *overrides: str, at: int = 100, saved: int = 65) -> Path:
        straight = train(algorithm, tmp_path / "straight", *overrides)
        crashed = crash(algorithm, tmp_path / "crashed", *overrides, at=at)
        assert checkpoint(crashed)["step"] == saved
        assert_same_run(straight, train(algorithm, crashed, *overrides))
        return straight

    return check


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory):
    """A finished run of TD3 with 100 transitions, to use as a dataset. Tests share it."""
    return train("td3", tmp_path_factory.mktemp("recorded") / "run", "total_frames=100")


@offered
def table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, without the speed, the only column that depends on time."""
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row.pop("steps_per_second", None)
    return rows


@offered
def checkpoint(run_dir: Path, position: int = -1):
    """The contents of a checkpoint, the newest by default."""
    files = sorted((run_dir / "checkpoint").glob("step_*.pt"))
    return load_checkpoint(files[position])


@offered
def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """What the files of a folder hold, and when they were written."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


@offered
def assert_equal(left, right, path: str = "") -> None:
    """Asserts that nested dictionaries and lists of tensors and numbers are bitwise equal."""
    assert type(left) is type(right), path
    if isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            assert_equal(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), path
        for position, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, f"{path}/{position}")
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype, path
        # NaN equals NaN here: the comparison is bitwise.
        np.testing.assert_array_equal(left.numpy(), right.numpy(), err_msg=path)
    else:
        assert left == right, path


@offered
def assert_same_run(left: Path, right: Path) -> None:
    """Asserts that tables, last checkpoint and policy of two finished runs are bitwise equal."""
    assert (left / "finished").exists()
    assert (right / "finished").exists()
    assert (left / "eval.csv").read_bytes() == (right / "eval.csv").read_bytes()
    assert table(left / "train.csv") == table(right / "train.csv")
    ends = [checkpoint(run_dir) for run_dir in (left, right)]
    for end in ends:
        end["run"].pop("dataset", None)  # a path
    assert_equal(*ends)
    assert_equal(*(dict(torch.load(d / "policy.pt", weights_only=True)) for d in (left, right)))


def _draw_without_pixels(run_dir: Path) -> Path | None:
    """Makes the whole figure from the files of a run, and an empty file instead of the picture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, file, **options: Path(file).touch())
        return draw_learning_curve(run_dir)


@pytest.fixture(scope="session", autouse=True)
def _no_pixels():
    """Runs in this process do not render their figures, which takes as long as a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "draw_learning_curve", _draw_without_pixels)
        yield


@pytest.fixture
def pixels(monkeypatch):
    """Runs of this test render their figures."""
    monkeypatch.setattr(session, "draw_learning_curve", draw_learning_curve)


@pytest.fixture(autouse=True)
def _denormal_numbers():
    """Restores denormal numbers, which a run may flush to zero, for other tests in this process."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def execute(monkeypatch):
    """``execute(program, *arguments)``: a command line, in this process."""

    def run(program, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["program.py", *arguments])
        program()

    return run


@pytest.fixture
def run_program(execute, capsys):
    """``run_program(program, *arguments)``: its exit code, output and errors."""

    def run(program, *arguments) -> tuple[int, str, str]:
        capsys.readouterr()
        code = 0
        try:
            execute(program, *map(str, arguments))
        except SystemExit as exit_:
            code = exit_.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def error_of(run_program):
    """``error_of(program, *arguments)``: the line with which a command line of a user fails."""

    def run(program, *arguments) -> str:
        code, _, errors = run_program(program, *arguments)
        assert code == 2
        (line,) = errors.splitlines()
        assert line.startswith("error: ")
        return line

    return run
