"""The status of runs: finished, running, stopped or not started."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vmfer_recipes import status
from vmfer_recipes.status import read_progress
from vmfer_recipes.sweep.records import PlannedRun, write_record


def _write_run(run_dir: Path, *, step: int, checkpoint: int = 0, age: float = 0, done=False):
    (run_dir / "checkpoint").mkdir(parents=True)
    config = {
        "seed": 0,
        "total_frames": 1000,
        "algorithm": "td3",
        "env": {"name": "Hopper-v4"},
        "replay": {"name": "uniform"},
        "sampler": {"name": "uniform"},
    }
    OmegaConf.save(OmegaConf.create(config), run_dir / "config.yaml")
    (run_dir / "eval.csv").write_text("step,return_mean\n0,1.0\n")
    (run_dir / "train.csv").write_text(f"step,steps_per_second\n{step},50.0\n")
    if checkpoint:
        (run_dir / "checkpoint" / f"step_{checkpoint:012d}.pt").touch()
    (run_dir / "lock").write_text("1 on another machine")
    if done:
        (run_dir / "finished").touch()
    for file in run_dir.rglob("*"):
        os.utime(file, (time.time() - age,) * 2)


def _record_sweep(start: Path, *run_dirs: str, total: int = 1000) -> Path:
    """Writes the record of a sweep that was started in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(start)
        runs = [PlannedRun(Path(run_dir), "td3", total) for run_dir in run_dirs]
        return start / write_record(runs, Path("runs/sweeps"), "python recipes/td3.py -m ...")


def _states(folder: Path) -> dict[str, str]:
    progress, complaints = read_progress(folder, recent=300)
    assert not complaints
    return {run.run_dir.as_posix(): run.state for run in progress}


@pytest.fixture
def runs(tmp_path):
    _write_run(tmp_path / "a", step=1000, done=True)
    _write_run(tmp_path / "b", step=700, checkpoint=500)
    _write_run(tmp_path / "c", step=700, checkpoint=500, age=4000)
    _write_run(tmp_path / "d", step=100, age=4000)
    return tmp_path


def test_states_and_remaining_steps(runs):
    (runs / "shooting").mkdir()  # the directory of another program
    (runs / "shooting" / "config.yaml").write_text("seeds: 20\nupdates: 500\n")
    progress, complaints = read_progress(runs, recent=300)
    found = {run.run_dir.name: (run.state, run.remaining) for run in progress}
    # A stopped run has lost what came after its checkpoint.
    assert found == {
        "a": ("done", 0),
        "b": ("running", 300),
        "c": ("stopped", 500),
        "d": ("stopped", 1000),
    }
    assert not complaints


def test_a_run_whose_process_has_ended_is_stopped(runs):
    process = subprocess.Popen(["true"])
    process.wait()
    (runs / "b" / "lock").write_text(f"{process.pid} on {platform.node()}")
    _write_run(runs / "e", step=700)
    (runs / "e" / "lock").write_text(f"{process.pid} on another machine")
    _write_run(runs / "f", step=700)
    (runs / "f" / "lock").write_text(f"{os.getpid()} on {platform.node()}")
    states = _states(runs)
    assert [states[name] for name in "bef"] == ["stopped", "running", "running"]


def test_kept_runs_of_which_only_the_tables_remain(runs):
    _write_run(runs / "e", step=1000)
    (runs / "e/eval.csv").write_text("step,return_mean\n0,1.0\n1000,2.0\n")
    for name in "be":
        (runs / name / "lock").unlink()
    states = _states(runs)
    assert (states["b"], states["e"]) == ("stopped", "done")


def test_a_later_sweep_does_not_hide_the_remaining_runs_of_another(tmp_path):
    _record_sweep(tmp_path, "runs/a/0", "runs/a/1")
    _record_sweep(tmp_path, "runs/b/0", "runs/b/1")
    _write_run(tmp_path / "runs/a/0", step=1000, done=True)
    left = dict.fromkeys(("a/1", "b/0", "b/1"), "left")
    assert _states(tmp_path / "runs") == {"a/0": "done", **left}
    # For a subfolder, only its own runs are shown.
    assert _states(tmp_path / "runs/a") == {"0": "done", "1": "left"}


@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
def test_runs_outside_the_folder_of_the_record(tmp_path, is_absolute):
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    place = str(out) if is_absolute else "../out"
    _record_sweep(start, f"{place}/0", f"{place}/1")
    _write_run(out / "0", step=1000, done=True)
    assert _states(out) == {"0": "done", "1": "left"}
    assert _states(start / "runs") == {f"{out}/0": "done", f"{out}/1": "left"}


def test_records_and_runs_can_be_moved_together(tmp_path):
    (tmp_path / "here").mkdir()
    _record_sweep(tmp_path / "here", "runs/0", "runs/1")
    _write_run(tmp_path / "here/runs/0", step=1000, done=True)
    (tmp_path / "here").rename(tmp_path / "there")
    assert _states(tmp_path / "there/runs") == {"0": "done", "1": "left"}


def test_an_extended_finished_run_has_steps_left(tmp_path):
    _record_sweep(tmp_path, "runs/0", total=1000)
    _write_run(tmp_path / "runs/0", step=1000, done=True)
    _record_sweep(tmp_path, "runs/0", total=3000)
    ((run,), _) = read_progress(tmp_path, recent=300)
    assert (run.state, run.step, run.total, run.remaining) == ("stopped", 1000, 3000, 2000)


def test_the_program_shows_a_table_and_time_left(runs, execute, error_of, capsys):
    _record_sweep(runs, "runs/td3/seed0", "runs/td3/seed1")
    _write_run(runs / "runs/td3/seed0", step=1000, done=True)
    # From any directory: a run that has started is not also listed as not started.
    execute(status.main, str(runs))
    shown = capsys.readouterr().out
    assert "\nruns/td3/seed1  left" in shown
    assert "2 done, 1 running, 2 stopped, 1 left" in shown
    # 300 + 500 + 1000 + 1000 steps at 50 per second.
    assert "56 s of work left" in shown
    assert "3,500 of 6,000 steps" in shown
    (runs / "empty").mkdir()
    for arguments in ([runs / "empty"], [runs / "nowhere"], [], [runs, "recent=soon"]):
        error_of(status.main, *arguments)
