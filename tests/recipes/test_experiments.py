"""The paper's experiments have the documented size, and an interrupted sweep resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.launch import Recipe
from vmfer_recipes.sweep import sweeps
from vmfer_recipes.sweep.records import read_records

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "configs" / "experiment").glob("*.yaml"))
TINY = (
    *("total_frames=200", "init_random_frames=50", "eval_interval=100", "num_eval_episodes=1"),
    *("hidden=[16,16]", "batch_size=16", "checkpoint_interval=50", "sampler=uniform,vmf_rank"),
)
# The command in the comment of an experiment, and the stated amount of work.
COMMAND = re.compile(
    r"python recipes/(\w+)\.py -m \+experiment=(\w+)(.*)\n"
    r"#\s+(\d+) runs × ([\d,]+) steps(?: × ([\d.]+))? = ([\d.]+) h"
)
SPEED = re.compile(r"TD3 ([\d.]+) and SAC ([\d.]+) steps/s")


def _commands():
    """The commands of all experiments."""
    for file in EXPERIMENTS:
        for match in COMMAND.finditer(file.read_text()):
            yield pytest.param(file, *match.groups(), id="-".join(match.groups()[:3]).strip())


class CheckedError(Exception):
    """Raised when all runs of a sweep have been checked."""


@pytest.mark.parametrize(
    ("file", "recipe", "name", "options", "runs", "steps", "factor", "hours"), list(_commands())
)
def test_experiments_are_valid_and_state_the_correct_amount_of_work(
    file, recipe, name, options, runs, steps, factor, hours, tmp_path, monkeypatch
):
    """The sweeper also checks that every run has a separate directory."""

    def stop(jobs):
        raise CheckedError(jobs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "check_parts", stop)
    monkeypatch.setattr(sys, "argv", [recipe, "-m", f"+experiment={name}", *options.split()])
    with pytest.raises(CheckedError) as checked:
        Recipe(recipe, algorithms()[recipe], print, recipe)()
    (jobs,) = checked.value.args
    total = int(steps.replace(",", ""))
    assert name == file.stem
    assert (len(jobs), {job.config.total_frames for job in jobs}) == (int(runs), {total})
    td3, sac = map(float, SPEED.search(file.read_text()).groups())
    expected = len(jobs) * total * float(factor or 1) / {"td3": td3, "sac": sac}[recipe] / 3600
    assert float(hours) == pytest.approx(expected, abs=0.06), f"should be {expected:.1f} h"


def test_all_experiments_have_a_command():
    names = {parameters.values[2] for parameters in _commands()}
    settings = {"demo", "short", "crossq_cpu", "redq_cpu", "tqc_cpu", "population_study"}
    settings |= {"critics", "droq", "fixed_temperature", "layer_norm_critics", "rlpd"}
    assert names == {file.stem for file in EXPERIMENTS} - settings


def _finished(tmp_path) -> dict[Path, int]:
    return {file.parent: file.stat().st_mtime_ns for file in tmp_path.rglob("finished")}


@pytest.mark.slow
def test_a_killed_sweep_resumes_where_it_stopped(tmp_path):
    command = [sys.executable, str(ROOT / "recipes" / "td3.py"), "-m"]
    command += ["+experiment=inverted_pendulum", *TINY, "seed=0"]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as sweep:
        while not _finished(tmp_path):
            assert sweep.poll() is None
            time.sleep(0.05)
        os.killpg(sweep.pid, signal.SIGKILL)
    before = _finished(tmp_path)
    tables = {run_dir: (run_dir / "eval.csv").read_bytes() for run_dir in before}
    assert len(before) == 1

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    after = _finished(tmp_path)
    assert len(after) == 2
    assert before.items() <= after.items()
    assert all((run_dir / "eval.csv").read_bytes() == table for run_dir, table in tables.items())
    planned, complaints = read_records(tmp_path)
    assert {run.run_dir for run in planned} == after.keys()
    assert not complaints
    assert again.stdout.count("is finished. Nothing to do.") == 1
