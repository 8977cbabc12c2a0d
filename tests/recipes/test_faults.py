"""Faults outside of a run end it with one line and do not damage saved files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from vmfer_recipes.config.errors import UserError

RUN = ("td3", "sampler=vmf_rank")


class Breaking(gym.Env):
    """A point on a line. It fails at step 75, counted over all episodes, in training only."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    fault: str | None = None
    is_evaluation = False

    def __init__(self):
        self.steps, self.position = 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.is_evaluation = seed >= 1_000_000
        self.position = float(self.np_random.uniform(-1, 1))
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.position = float(np.clip(self.position + 0.1 * action[0], -1, 1))
        observation, reward = self._observation(), -abs(self.position)
        where = "evaluation" if self.is_evaluation else "training"
        if self.steps == 75 and self.fault and self.fault.startswith(where):
            if "raises" in self.fault:
                raise ZeroDivisionError("the gearbox\nis stuck")
            if "shape" in self.fault:
                observation = np.zeros(3, np.float32)
            elif "reward" in self.fault:
                rewards = {"nan": float("nan"), "one": np.ones(1), "no": None}
                reward = rewards[self.fault.split()[1]]
            elif "info" in self.fault:
                return observation, reward, False, False, None
            else:
                observation[1] = float("inf" if "infinite" in self.fault else "nan")
        return observation, reward, False, False, {}

    def _observation(self):
        return np.array([self.position, 1.0], np.float32)


@pytest.fixture
def breaking(monkeypatch):
    """``breaking(fault)``: makes ``Breaking-v0`` fail in this way, or not at all with ``None``."""
    gym.register("Breaking-v0", Breaking, max_episode_steps=20)
    yield lambda fault: monkeypatch.setattr(Breaking, "fault", fault)
    del gym.registry["Breaking-v0"]


BREAKING = (
    *("env.name=Breaking-v0", "init_random_frames=30", "total_frames=90"),
    *("checkpoint_interval=20", "log_interval=10", "eval_interval=30"),
)


def steps_saved(run_dir: Path) -> list[int]:
    return sorted(int(file.stem[5:]) for file in (run_dir / "checkpoint").glob("*.pt"))


@pytest.mark.parametrize(
    ("fault", "fast", "message"),
    [
        ("raises", "true", r"raised ZeroDivisionError \(the gearbox; line \d+ of test_faults.py\)"),
        ("nan reward", "false", "returned the reward nan, not a number"),
        ("one reward", "true", r"returned the reward array\(\[1\.\]\), not a number"),
        ("no reward", "false", "returned the reward None, not a number"),
        ("shape", "true", r"returned 'observation' of shape \(3,\), not \(2,\)"),
        ("no info", "true", "returned None as info, not a dictionary"),
        ("nan observation", "true", "returned NaN or infinity in 'observation'"),
        ("infinite observation", "false", "returned NaN or infinity in 'observation'"),
    ],
)
def test_failing_environment_is_reported_with_its_step(
    fault, fast, message, breaking, train, tmp_path
):
    breaking(f"training {fault}")
    with pytest.raises(UserError, match=rf"^At step 75: Breaking-v0 {message}: fix it") as error:
        train("td3", tmp_path, *BREAKING, f"fast={fast}")
    assert len(str(error.value).splitlines()) == 1
    assert steps_saved(tmp_path) == [40, 60]


def test_environment_that_fails_in_an_evaluation_is_reported_with_the_step(
    breaking, train, tmp_path
):
    breaking("evaluation raises")
    # Evaluations at 0, 30, 60 and 90 of 20 steps each: step 75 lies in the fourth.
    with pytest.raises(UserError, match=r"^In the evaluation at step 90: Breaking-v0 raised"):
        train("td3", tmp_path, *BREAKING)
    assert steps_saved(tmp_path) == [60, 80]


@pytest.mark.parametrize(
    ("overrides", "sign", "saved"),
    [
        # The first update, at step 61, makes the critics huge; the second makes the actor NaN.
        (("log_interval=1",), "critic_loss is (inf|nan) at step 62", [31]),
        (("log_interval=100",), "critic_loss is (inf|nan) at step 62", [31]),
        (("log_interval=100", "checkpoint_interval=25"), "Pendulum-v1 got an action", [25, 50]),
        (
            ("log_interval=100", "replay=per_rank"),
            "(a TD error is not finite|critic_loss is inf)",
            [31],
        ),
    ],
    ids=["log", "checkpoint", "action", "priority"],
)
def test_diverged_training_stops_before_it_is_saved(overrides, sign, saved, train, tmp_path):
    options = ("env.name=Pendulum-v1", "critic_lr=1e9", "checkpoint_interval=31")
    with pytest.raises(UserError, match=f"Training diverged, {sign}.*: use smaller learning rates"):
        train("td3", tmp_path, *options, *overrides)
    assert steps_saved(tmp_path) == saved


@pytest.fixture
def disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    filler.write_bytes(b"\0" * shutil.disk_usage(disk).free)
    return filler


def test_full_disk_does_not_damage_saved_files(
    disk, straight_run, crashed_run, finish, contents, assert_same_run, capfd
):
    run_dir = shutil.copytree(crashed_run(*RUN), disk / "run")
    saved = contents(run_dir / "checkpoint")
    filler = fill(disk)
    with pytest.raises(UserError, match=r"No space left.*: free disk space and run the same"):
        finish(RUN[0], run_dir, *RUN[1:])
    assert contents(run_dir / "checkpoint") == saved
    assert not (run_dir / "finished").exists()
    filler.unlink()
    finish(RUN[0], run_dir, *RUN[1:])
    assert "at step 120." in capfd.readouterr().err
    assert_same_run(straight_run(*RUN), run_dir)
    assert not list(run_dir.rglob("*.unfinished"))


def test_read_only_directory_is_rejected(disk, crashed_run, finish):
    run_dir = shutil.copytree(crashed_run(*RUN), disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(UserError, match=r"Read-only file system.*choose another run_dir") as error:
        finish(RUN[0], run_dir, *RUN[1:])
    assert str(run_dir) in str(error.value)
