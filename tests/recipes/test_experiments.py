"""The paper's experiments have the documented size, and an interrupted sweep resumes."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser

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


def _commands(quick: frozenset[str] | None = None):
    """Yields the commands of all experiments. Those that are not of ``quick`` ones are slow."""
    for file in EXPERIMENTS:
        marks = () if quick is None or file.stem in quick else pytest.mark.slow
        for match in COMMAND.finditer(file.read_text()):
            name = "-".join(match.groups()[:3]).strip()
            yield pytest.param(file, *match.groups(), id=name, marks=marks)


def _fixed(options: str) -> list[str]:
    """Returns the options that are the same for all runs of a command."""
    return [option for option in options.split() if "," not in option]


def _compose(recipe: str, overrides: list[str]):
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return compose(recipe, overrides, return_hydra_config=True)


@pytest.mark.parametrize(
    ("file", "recipe", "name", "options", "runs", "steps", "factor", "hours"), list(_commands())
)
def test_comments_state_the_correct_amount_of_work(
    file, recipe, name, options, runs, steps, factor, hours
):
    cfg = _compose(recipe, [f"+experiment={name}", *_fixed(options)])
    assert name == file.stem
    params = cfg.hydra.sweeper.params
    grid = {key: f"{key}={value}" for key, value in params.items()}
    grid |= {option.split("=")[0]: option for option in options.split()}
    count = 1
    for override in OverridesParser.create().parse_overrides(list(grid.values())):
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [0]
        count *= len(values)
    total = int(steps.replace(",", ""))
    td3, sac = map(float, SPEED.search(file.read_text()).groups())
    expected = count * total * float(factor or 1) / {"td3": td3, "sac": sac}[recipe] / 3600
    assert (count, total) == (int(runs), cfg.total_frames)
    assert float(hours) == pytest.approx(expected, abs=0.06), f"should be {expected:.1f} h"


@pytest.mark.parametrize(
    ("file", "recipe", "name", "options", "runs", "steps", "factor", "hours"),
    list(_commands(quick=frozenset({"hopper_200k", "her_variants", "overhead"}))),
)
def test_every_run_of_a_sweep_has_its_own_directory(
    file, recipe, name, options, runs, steps, factor, hours
):
    overrides = [f"+experiment=[{name},short]", *_fixed(options)]
    cfg = _compose(recipe, overrides)
    params = {key: str(value) for key, value in cfg.hydra.sweeper.params.items()}
    grid = params | dict(option.split("=") for option in options.split())
    grid["seed"] = "0,1"
    # Two environments and seeds stand for all, because composing is slow.
    choices = {
        key: values.split(",")[: 2 if key == "env" else None] for key, values in grid.items()
    }
    seen = {}
    for values in itertools.product(*choices.values()):
        chosen = [f"{key}={value}" for key, value in zip(choices, values, strict=True)]
        one = _compose(recipe, [overrides[0], *chosen])
        assert one.total_frames == 1500
        assert one.run_dir not in seen, (chosen, seen[one.run_dir])
        seen[one.run_dir] = chosen


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
