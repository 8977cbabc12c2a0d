"""A search runs each trial once, resumes after a crash, and reports the best trial."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from vmfer_recipes import tune
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.launch import Recipe
from vmfer_recipes.report.runs import objective

ROOT = Path(__file__).parents[2]
SPACE = ("critic_lr=tag(log,interval(1e-4,1e-2))", "batch_size=interval(16,64)", "tau=0.1,0.2")


@pytest.fixture
def search(tmp_path, monkeypatch):
    """``search(trials, *arguments)``: a search with runs that take no time; returns their configs.

    ``crash_at=2`` ends the program in the run with that number, as Ctrl-C does.
    """

    def start(trials: int, *arguments: str, folder: str = ".", crash_at: int = -1):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        started = []

        def run(cfg):
            started.append(cfg)
            if len(started) - 1 == crash_at:
                raise KeyboardInterrupt
            score = math.nan if cfg.num_critics == 7 else -abs(math.log10(cfg.critic_lr) + 3)
            Path(cfg.run_dir).mkdir(parents=True)
            Path(cfg.run_dir, "eval.csv").write_text(f"step,return_mean\n0,0\n100,{score}\n")

        monkeypatch.setattr(tune, "load_recipe", lambda name: Recipe("td3", TD3Config, run, "td3"))
        monkeypatch.setattr(sys, "argv", ["tune.py", "td3", f"trials={trials}", *arguments])
        tune.main()
        return started

    return start


def _values(runs):
    return [(cfg.critic_lr, cfg.batch_size, cfg.tau) for cfg in runs]


def _table(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.rglob("trials.csv")
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_an_interrupted_search_resumes_with_the_same_trials(search, tmp_path, capsys):
    whole = search(3, *SPACE)
    assert len({*_values(whole)}) == len({cfg.run_dir for cfg in whole}) == 3
    assert all(1e-4 <= cfg.critic_lr <= 1e-2 for cfg in whole)
    assert all(type(cfg.batch_size) is int and 16 <= cfg.batch_size <= 64 for cfg in whole)
    table = _table(tmp_path)
    best = max(whole, key=lambda cfg: -abs(math.log10(cfg.critic_lr) + 3))
    shown = capsys.readouterr().out
    assert f"Best of 3 trials: trial {whole.index(best)} with final return_mean" in shown
    assert f"critic_lr={best.critic_lr} batch_size={best.batch_size} tau={best.tau}" in shown
    assert best.run_dir in shown
    assert not search(3, *SPACE)  # nothing is repeated

    with pytest.raises(SystemExit):
        search(3, *SPACE, folder="again", crash_at=1)
    assert _values(search(3, *SPACE, folder="again")) == _values(whole[1:])
    assert _table(tmp_path / "again") == table


def test_more_trials_continue_a_search_and_other_values_start_another(search, tmp_path):
    first = search(2, SPACE[0])
    assert len(search(3, SPACE[0])) == 1
    assert len(_table(tmp_path)) == 3
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    folders = {Path(first[0].run_dir).parent}
    for frames in (30_000, 40_000):  # values of a file count as well
        file.write_text(f"# @package _global_\ntotal_frames: {frames}\n")
        (cfg,) = search(1, "--config-dir", str(tmp_path / "own"), "+experiment=mine", SPACE[0])
        folders.add(Path(cfg.run_dir).parent)
    assert len(folders) == 3


def test_a_failed_trial_counts_and_the_search_continues(search, tmp_path, capsys):
    search(4, SPACE[0], "num_critics=2,7", "run_dir=found")
    states = {row["num_critics"]: row["state"] for row in _table(tmp_path / "found")}
    assert states == {"2": "complete", "7": "fail"}
    assert " failed: trial" in capsys.readouterr().out
    assert not search(4, SPACE[0], "num_critics=2,7", "run_dir=found")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tau=0.1",), "a range"),
        (("tau=interval(0.5,2)",), "tau must be a number from 0 to 1, got 2"),
        (("batch_size=interval(9,8)",), "is not a range"),
        ((*SPACE, "objective=worst"), "objective must be final, best or area"),
        ((SPACE[0], "metric=mean"), "metric must be return_mean, "),
        ((SPACE[0], "sampler=vmf_rank,vmfrank"), "There is no sampler=vmfrank"),
        ((SPACE[0], "tau=0.1,0.2", "run_dir=mine"), "mine holds another search"),
    ],
)
def test_user_errors_take_one_line(search, capsys, arguments, message):
    search(1, SPACE[0], "run_dir=mine")
    with pytest.raises(SystemExit) as exit_:
        search(1, *arguments)
    assert exit_.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("kind", "direction", "value"),
    [("final", "maximize", 4), ("best", "maximize", 7), ("best", "minimize", 2), ("area", "", 5)],
)
def test_objectives(tmp_path, kind, direction, value):
    (tmp_path / "eval.csv").write_text("step,return_mean,success_rate\n0,2,0\n50,7,1\n100,4,0\n")
    assert objective(tmp_path, "return_mean", kind, direction) == value


@pytest.mark.slow
def test_a_search_resumes_after_a_kill(tmp_path):
    command = [sys.executable, str(ROOT / "recipes/tune.py"), "td3", "env=InvertedPendulum-v4"]
    command += ["total_frames=150", "init_random_frames=60", "eval_interval=50", "hidden=[16,16]"]
    command += ["num_eval_episodes=1", "batch_size=16,32", "checkpoint_interval=20", SPACE[0]]
    command += ["trials=3", "run_dir=found"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not list((tmp_path / "found/trial001").glob("checkpoint/*.pt")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    first = (tmp_path / "found/trial000/finished").stat().st_mtime_ns
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "found/trial000/finished").stat().st_mtime_ns == first
    assert "in found/trial001. Resuming at step" in done.stderr
    assert "Best of 3 trials" in done.stdout
    assert [row["state"] for row in _table(tmp_path)] == ["complete"] * 3
