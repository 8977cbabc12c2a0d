"""Where runs stand, of which some are done, running, stopped or not begun."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from vmfer_recipes.reporting.progress import read_progress
from vmfer_recipes.reporting.sweeps import planned_runs

ROOT = Path(__file__).parents[2]


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
    if done:
        (run_dir / "finished").touch()
    for file in run_dir.rglob("*"):
        os.utime(file, (time.time() - age,) * 2)


def _note_sweep(folder: Path, **hydra) -> None:
    """What Hydra notes of a sweep, as far as it matters."""
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        config = compose("td3", ["total_frames=1000", "init_random_frames=10"])
    # The files were moved since: the place where they lie counts, not where they once were.
    hydra |= {"sweep": {"dir": "runs/sweeps"}, "runtime": {"cwd": "/elsewhere"}}
    note = {"hydra": hydra, **OmegaConf.to_container(config)}
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(note), folder / "multirun.yaml")


@pytest.fixture
def runs(tmp_path):
    _write_run(tmp_path / "a", step=1000, done=True)
    _write_run(tmp_path / "b", step=700, checkpoint=500)
    _write_run(tmp_path / "c", step=700, checkpoint=500, age=4000)
    _write_run(tmp_path / "d", step=100, age=4000)
    return tmp_path


def test_states_and_remaining_steps(runs):
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
    progress, _ = read_progress(runs, recent=300)
    states = {run.run_dir.name: run.state for run in progress}
    assert {name: states[name] for name in "bef"} == {
        "b": "stopped",
        "e": "running",
        "f": "running",
    }


def test_the_grid_of_a_sweep_is_what_hydra_would_run(tmp_path):
    _note_sweep(
        tmp_path / "runs" / "sweeps",
        sweeper={
            "params": {"seed": "0,1,2", "sampler": "uniform,vmf_rank", "env": "Ant-v4,Hopper-v4"}
        },
        overrides={"task": ["+experiment=something", "seed=range(5,7)", "replay=per_rank"]},
    )
    planned, complaints = planned_runs(tmp_path)
    expected = {
        tmp_path / f"runs/td3/{env}/per_rank-{sampler}/seed{seed}"
        for env in ("Ant-v4", "Hopper-v4")
        for sampler in ("uniform", "vmf_rank")
        for seed in (5, 6)
    }
    assert planned.keys() == expected
    assert {cfg.total_frames for cfg in planned.values()} == {1000}
    assert not complaints


def test_the_run_dir_of_a_sweep_may_refer_to_defaults_of_its_choices(tmp_path):
    _note_sweep(
        tmp_path / "runs" / "sweeps",
        sweeper={"params": {"sampler": "vmf_direct"}},
        overrides={"task": ["run_dir=runs/${sampler.num_candidates}"]},
    )
    planned, complaints = planned_runs(tmp_path)
    assert planned.keys() == {tmp_path / "runs/2560"}
    assert not complaints


def test_a_choice_outside_the_package_is_not_read(tmp_path):
    (tmp_path / "evil.yaml").write_text("name: evil")
    _note_sweep(
        tmp_path / "runs" / "sweeps",
        sweeper={"params": {}},
        overrides={"task": [f"sampler={'../' * 20}{tmp_path}/evil"]},
    )
    planned, complaints = planned_runs(tmp_path)
    assert not planned
    assert len(complaints) == 1


def test_damaged_notes_and_configs_are_named(runs):
    (runs / "a" / "config.yaml").write_text("a: [")
    (runs / "multirun.yaml").write_text("nothing: 1")
    progress, complaints = read_progress(runs, recent=300)
    assert len(progress) == 3
    assert len(complaints) == 2


def test_the_program_shows_a_table_and_time_left(runs, monkeypatch, capsys):
    _note_sweep(runs / "runs/sweeps", sweeper={"params": {"seed": "0,1"}}, overrides={"task": []})
    _write_run(runs / "runs/td3/HalfCheetah-v4/uniform-vmf_uncertainty/seed0", step=1000, done=True)
    program = importlib.import_module("vmfer_recipes.status")
    # From anywhere: a run that has begun is not told again as one that is left.
    monkeypatch.setattr(sys, "argv", ["status.py", str(runs)])
    program.main()
    shown = capsys.readouterr().out
    assert "\nruns/td3/HalfCheetah-v4/uniform-vmf_uncertainty/seed1  left" in shown
    monkeypatch.chdir(runs)
    assert "2 done, 1 running, 2 stopped, 1 left" in shown
    # 300 + 500 + 1000 + 1000 steps at 50 per second.
    assert "56 s of work left" in shown
    assert "3,500 of 6,000 steps" in shown
    (runs / "empty").mkdir()
    for arguments in (["empty"], ["nowhere"], [], [".", "recent=soon"]):
        monkeypatch.setattr(sys, "argv", ["status.py", *arguments])
        with pytest.raises(SystemExit) as exit_:
            program.main()
        assert exit_.value.code == 2
        assert capsys.readouterr().err.startswith("error: ")
