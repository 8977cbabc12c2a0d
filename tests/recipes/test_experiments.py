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
    "total_frames=200",
    "init_random_frames=50",
    "eval_interval=100",
    "log_interval=25",
    "checkpoint_interval=50",
    "num_eval_episodes=1",
    "hidden=[16,16]",
    "batch_size=16",
    "replay.buffer_size=1000",
    "sampler=uniform,vmf_rank",
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
    """The sweeper also checks that every run has a directory of its own."""

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
    assert names == {file.stem for file in EXPERIMENTS} - settings


def _sweep(tmp_path, *options):
    command = [sys.executable, str(ROOT / "recipes" / "td3.py"), "-m"]
    return subprocess.Popen(
        [*command, "+experiment=inverted_pendulum", *TINY, *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _finished(tmp_path) -> dict[Path, int]:
    return {file.parent: file.stat().st_mtime_ns for file in tmp_path.rglob("finished")}


@pytest.mark.parametrize(
    ("count", "options"),
    [
        pytest.param(2, ("seed=0",), id="basic"),
        pytest.param(
            4,
            ("seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
            id="joblib",
        ),
    ],
)
@pytest.mark.slow
def test_a_killed_sweep_resumes_where_it_stopped(tmp_path, count, options):
    if count == 4:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = _sweep(tmp_path, *options)
    deadline = time.time() + 120
    while not _finished(tmp_path) and sweep.poll() is None:
        assert time.time() < deadline
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    before = _finished(tmp_path)
    contents = {d: (d / "eval.csv").read_bytes() for d in before}
    assert 0 < len(before) < count

    again = _sweep(tmp_path, *options)
    out, error = again.communicate(timeout=300)
    assert again.returncode == 0, error
    after = _finished(tmp_path)
    assert len(after) == count
    for run_dir, when in before.items():
        assert after[run_dir] == when
        assert (run_dir / "eval.csv").read_bytes() == contents[run_dir]
        assert (run_dir / "eval.csv").stat().st_mtime_ns <= when
    planned, complaints = read_records(tmp_path)
    assert {run.run_dir for run in planned} == after.keys()
    assert not complaints
    if count == 2:  # the output of joblib workers is not captured here
        assert out.count("is finished. Nothing to do.") == len(before)
