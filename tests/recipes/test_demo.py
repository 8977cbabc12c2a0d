"""The demo solves a task with several action dimensions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from vmfer_recipes.config.training import to_config
from vmfer_recipes.td3 import main

ROOT = Path(__file__).parents[2]
SHORTENED = (
    *("total_frames=160", "init_random_frames=60", "eval_interval=80", "num_eval_episodes=1"),
    *("log_interval=20", "hidden=[16,16]", "batch_size=16", "solved_at=0.5"),
)


@pytest.fixture
def demo(tmp_path, capsys):
    """``demo(*overrides)``: runs the demo and returns its directory and output."""

    def run(*overrides):
        with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
            cfg = compose("td3", ["+experiment=demo", *overrides, f"run_dir={tmp_path / 'run'}"])
        main.__wrapped__(to_config(cfg))
        return tmp_path / "run", capsys.readouterr().out

    return run


@pytest.mark.usefixtures("pixels")
def test_the_shortened_demo_writes_all_files_and_reports_that_the_task_is_not_solved(demo, table):
    run_dir, said = demo(*SHORTENED)
    assert said.startswith("Not solved (at success rate 0.5): Return -")
    assert "the random policy gets -" in said
    for name in ("learning_curve.png", "eval.csv", "train.csv", "policy.pt"):
        assert (run_dir / name).stat().st_size > 0
        assert str(run_dir / name) in said
    assert len(table(run_dir / "random.csv")) == 1


def test_make_demo_runs_the_experiment():
    said = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True)
    assert "recipes/td3.py +experiment=demo\n" in said.stdout


@pytest.mark.slow
def test_the_demo_is_solved_and_the_random_policy_fails(demo, table):
    run_dir, said = demo()
    assert said.startswith("Solved (at success rate 0.95)")
    assert all(float(row["success_rate"]) >= 0.95 for row in table(run_dir / "eval.csv")[-3:])
    assert float(table(run_dir / "random.csv")[0]["success_rate"]) <= 0.2
