"""Hyperparameter search runs each trial once, resumes after a crash, and reports the best trial."""

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
from hydra.core.config_store import ConfigStore

from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.launch import check_command_line, recipe
from vmfer_recipes.run.files import lock
from vmfer_recipes.sweep.records import read_records
from vmfer_recipes.sweep.search import objective

pytest.importorskip("optuna")
ROOT = Path(__file__).parents[2]
SPACE = ("critic_lr=tag(log,interval(1e-4,1e-2))", "batch_size=interval(16,64)", "tau=0.1,0.2")


@pytest.fixture
def search(tmp_path, monkeypatch):
    """``search(trials, *arguments)``: runs a search with runs that take no time.

    ``crash_at=2`` ends the program in the run with that number, as Ctrl-C does. Returns the
    configurations of the runs that were started.
    """

    def start(trials: int, *arguments: str, folder: str = ".", crash_at: int = -1):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        started = []

        @recipe("td3", TD3Config)
        def main(cfg):
            started.append(cfg)
            if len(started) - 1 == crash_at:
                raise KeyboardInterrupt
            run_dir = Path(cfg.run_dir)
            with lock(run_dir):
                pass
            score = math.nan if cfg.num_critics == 7 else -abs(math.log10(cfg.critic_lr) + 3)
            table = f"step,return_mean\n0,0\n{cfg.total_frames},{score}\n"
            (run_dir / "eval.csv").write_text(table)
            (run_dir / "finished").touch()

        options = ["hydra/sweeper=optuna", f"hydra.sweeper.n_trials={trials}"]
        monkeypatch.setattr(sys, "argv", ["td3.py", "-m", *options, *arguments])
        main()
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
    assert len({*_values(whole)}) == 3
    assert len({cfg.run_dir for cfg in whole}) == 3
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
    planned, _ = read_records(tmp_path / "again")
    assert len(planned) == 3
    rest = search(3, *SPACE, folder="again")
    assert _values(rest) == _values(whole[1:])
    assert _table(tmp_path / "again") == table


def test_a_trial_that_another_process_runs_is_left_to_it(search, tmp_path, capsys):
    with pytest.raises(SystemExit):
        search(2, SPACE[0], crash_at=0)  # the trial is drawn
    (directory,) = (run.run_dir for run in read_records(tmp_path)[0][:1])
    directory.mkdir(parents=True)
    held = lock(directory)
    capsys.readouterr()

    with pytest.raises(SystemExit) as exit_:
        search(2, SPACE[0])
    assert exit_.value.code == 2
    assert "error: Another process is running trial 0 of this search" in capsys.readouterr().err
    held.close()
    assert len(search(2, SPACE[0])) == 2  # it has not failed


@pytest.mark.slow
def test_more_trials_continue_a_search(search, tmp_path):
    first = search(2, SPACE[0])
    assert len(search(3, SPACE[0])) == 1
    assert len(_table(tmp_path)) == 3
    # Other values define another search.
    other = search(1, SPACE[0], "seed=1")
    assert Path(other[0].run_dir).parent != Path(first[0].run_dir).parent


@pytest.mark.slow
def test_a_failed_trial_counts_and_the_search_continues(search, tmp_path, capsys):
    search(4, SPACE[0], "num_critics=2,7", "run_dir=found")
    states = {row["num_critics"]: row["state"] for row in _table(tmp_path / "found")}
    assert states == {"2": "complete", "7": "fail"}
    shown = capsys.readouterr()
    assert "failed (return_mean is nan in found/trial" in shown.err
    assert " failed: trial" in shown.out
    assert not search(4, SPACE[0], "num_critics=2,7", "run_dir=found")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "There is nothing to search"),
        (("tau=interval(0.5,2)",), "tau must be a number from 0 to 1, got 2"),
        (("batch_size=interval(9,8)",), "is not a range"),
        ((*SPACE, "hydra.sweeper.objective=worst"), "objective must be final, best or area"),
    ],
    ids=["no range", "end out of bounds", "empty range", "unknown objective"],
)
def test_user_errors_are_reported_before_the_first_trial(search, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        search(3, *arguments)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_folder_of_another_search_is_rejected(search, capsys):
    search(1, SPACE[0], "run_dir=mine")
    with pytest.raises(SystemExit):
        search(1, SPACE[0], "tau=0.1,0.2", "run_dir=mine")
    assert "mine holds another search" in capsys.readouterr().err


def test_a_missing_package_is_reported(search, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        search(1, SPACE[0])
    assert "pip install '.[search]'" in capsys.readouterr().err


def test_the_early_check_of_the_command_line_knows_the_search(monkeypatch, capsys):
    # Otherwise only a program that was started from a shell lacks it: here, others registered it.
    sweepers = ConfigStore.instance().repo["hydra"].get("sweeper", {})
    monkeypatch.delitem(sweepers, "optuna.yaml", raising=False)
    command = ["td3.py", "-m", "hydra/sweeper=optuna", *SPACE]
    monkeypatch.setattr(sys, "argv", command)
    check_command_line("td3", TD3Config)
    monkeypatch.setattr(sys, "argv", [*command, "hydra.sweeper.n_trial=3"])
    with pytest.raises(SystemExit) as exit_:
        check_command_line("td3", TD3Config)
    assert exit_.value.code == 2
    assert "n_trial" in capsys.readouterr().err


def test_a_search_without_m(monkeypatch, capsys):
    sweepers = ConfigStore.instance().repo["hydra"].get("sweeper", {})
    monkeypatch.delitem(sweepers, "optuna.yaml", raising=False)
    monkeypatch.setattr(sys, "argv", ["td3.py", "hydra/sweeper=optuna", "tau=0.1"])
    with pytest.raises(SystemExit):
        check_command_line("td3", TD3Config)
    assert capsys.readouterr().err.endswith("add -m.\n")


def test_objectives(tmp_path):
    (tmp_path / "finished").touch()
    (tmp_path / "eval.csv").write_text("step,return_mean,success_rate\n0,0,0\n50,8,1\n100,4,0\n")
    values = [objective(tmp_path, 100, kind, "return_mean") for kind in ("final", "best", "area")]
    assert values == [4, 8, 5]
    assert objective(tmp_path, 100, "best", "success_rate") == 1


@pytest.mark.slow
def test_the_example_is_resumed_after_a_kill(tmp_path):
    program = [sys.executable, str(ROOT / "recipes/td3.py"), "-m", "hydra/sweeper=optuna"]
    example = ["--config-dir", str(ROOT / "examples"), "+experiment=search", "run_dir=found"]
    short = ["total_frames=150", "init_random_frames=60", "eval_interval=50", "hidden=[16,16]"]
    short += ["num_eval_episodes=1", "batch_size=16,32", "checkpoint_interval=20"]
    command = [*program, *example, *short, "hydra.sweeper.n_trials=3"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not list((tmp_path / "found/trial001").glob("checkpoint/*.pt")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (tmp_path / "found/trial001/finished").exists()
    first = (tmp_path / "found/trial000/finished").stat().st_mtime_ns
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "found/trial000/finished").stat().st_mtime_ns == first
    assert "in found/trial001. Resuming at step" in done.stderr
    assert "Best of 3 trials" in done.stdout
    assert [row["state"] for row in _table(tmp_path)] == ["complete"] * 3
    assert {*tmp_path.glob("found/trial*/")} == {tmp_path / f"found/trial00{n}" for n in range(3)}


def test_other_values_in_an_experiment_start_another_search(search, tmp_path):
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    given = ("--config-dir", str(tmp_path / "own"), "+experiment=mine", SPACE[0])
    for frames in (30_000, 40_000, 30_000):
        file.write_text(f"# @package _global_\ntotal_frames: {frames}\n")
        search(1, *given)
    assert len(list((tmp_path / "runs/search").iterdir())) == 2


def test_other_values_within_a_swept_group_start_another_search(search, tmp_path):
    for smoothing in (0.1, 0.9):
        search(1, "sampler=vmf_rank,vmf_power", f"sampler.smoothing={smoothing}")
    assert len(list((tmp_path / "runs/search").iterdir())) == 2
