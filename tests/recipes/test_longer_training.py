"""A run that is extended by raising ``total_frames`` equals a run of that length."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.run.log import BestPolicy

RUN = ("td3", "sampler=vmf_rank")
# Neither a multiple of the intervals between evaluations (70) nor between rows of train.csv (50),
# and in the middle of an episode of 50 steps.
SHORT = "total_frames=95"


@pytest.fixture(scope="session")
def short_run(straight_run):
    """``short_run(algorithm, *overrides)``: a finished run that ends early. Copy it before use."""
    return lambda algorithm, *overrides: straight_run(algorithm, *overrides, SHORT)


def steps(file: Path) -> list[int]:
    return [int(line.partition(",")[0]) for line in file.read_text().splitlines()[1:]]


def weights(file: Path) -> dict:
    return dict(torch.load(file, weights_only=True))


@pytest.fixture
def assert_equals_run_of_full_length(assert_same_run, assert_equal):
    def check(straight: Path, continued: Path) -> None:
        assert_same_run(straight, continued)
        assert_equal(*(weights(run / "policy_best.pt") for run in (straight, continued)))
        curves = [(run / "learning_curve.png").exists() for run in (straight, continued)]
        assert curves == [True, True]
        configs = [OmegaConf.load(run / "config.yaml") for run in (straight, continued)]
        for config in configs:
            del config["run_dir"]
        assert configs[0] == configs[1]
        names = [sorted(file.name for file in run.rglob("*")) for run in (straight, continued)]
        assert names[0] == names[1]

    return check


@pytest.mark.parametrize(
    "combination",
    [
        RUN,
        pytest.param(("sac", "sampler=vmf_uncertainty", "replay=per_rank"), marks=pytest.mark.slow),
        pytest.param(("sac", "sampler=uniform", "replay=per"), marks=pytest.mark.slow),
        pytest.param(("td3", "sampler=uniform", "fast=false"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_extended_run_equals_a_run_of_that_length(
    combination, short_run, straight_run, finish, assert_equals_run_of_full_length, tmp_path, capfd
):
    algorithm, *overrides = combination
    run_dir = shutil.copytree(short_run(*combination), tmp_path / "run")
    # Otherwise the test would not detect whether the last rows are removed.
    assert steps(run_dir / "eval.csv") == [0, 70, 95]
    assert steps(run_dir / "train.csv") == [50, 95]
    finish(algorithm, run_dir, *overrides)
    assert "at step 95." in capfd.readouterr().err
    assert_equals_run_of_full_length(straight_run(*combination), run_dir)


@pytest.mark.parametrize(
    ("lost", "frames"),
    [
        # The first change to the directory of a run that is continued.
        (("finished",), ()),
        # A run that was killed after its last checkpoint.
        (("finished", "policy.pt", "learning_curve.png"), (SHORT,)),
    ],
)
def test_run_killed_before_the_first_step_after_a_checkpoint_ends_as_before(
    lost, frames, straight_run, short_run, finish, assert_equals_run_of_full_length, tmp_path, capfd
):
    run_dir = shutil.copytree(short_run(*RUN), tmp_path / "run")
    for name in lost:
        (run_dir / name).unlink()
    straight = straight_run(*RUN, *frames)
    finish(RUN[0], run_dir, *RUN[1:], *frames)
    assert "at step 95." in capfd.readouterr().err
    assert_equals_run_of_full_length(straight, run_dir)


def test_continuation_that_crashes_is_unfinished_and_resumes(
    short_run, straight_run, finish, failing_at, assert_equals_run_of_full_length, tmp_path
):
    run_dir = shutil.copytree(short_run(*RUN), tmp_path / "run")
    with failing_at(50):  # at 145, after evaluation and checkpoint
        finish(RUN[0], run_dir, *RUN[1:])
    assert not (run_dir / "finished").exists()
    assert not (run_dir / "policy.pt").exists()  # the checkpoint of step 95
    assert OmegaConf.load(run_dir / "config.yaml").total_frames == 161
    with pytest.raises(UserError, match=r"already at step 120, more than total_frames=95"):
        finish(RUN[0], run_dir, *RUN[1:], SHORT)
    finish(RUN[0], run_dir, *RUN[1:])
    assert_equals_run_of_full_length(straight_run(*RUN), run_dir)


def test_unfinished_run_can_end_earlier_than_planned(
    crashed_run, straight_run, finish, assert_equals_run_of_full_length, tmp_path, capfd
):
    run_dir = shutil.copytree(crashed_run(*RUN), tmp_path / "run")
    with pytest.raises(UserError, match=r"already at step 120, more than total_frames=119: use at"):
        finish(RUN[0], run_dir, *RUN[1:], "total_frames=119")
    finish(RUN[0], run_dir, *RUN[1:], "total_frames=125")
    assert "at step 120." in capfd.readouterr().err
    assert_equals_run_of_full_length(straight_run(*RUN, "total_frames=125"), run_dir)


def test_finished_run_cannot_be_shortened(straight_run, finish, contents):
    run_dir = straight_run(*RUN)
    before = contents(run_dir)
    with pytest.raises(UserError, match=r"run of 161 steps, more than total_frames=95: use at"):
        finish(RUN[0], run_dir, *RUN[1:], SHORT)
    assert contents(run_dir) == before


def test_run_without_a_checkpoint_is_not_continued(train, contents, tmp_path):
    short = ("total_frames=66", "keep_checkpoint=false")
    run_dir = train("td3", tmp_path / "run", *short)
    assert not (run_dir / "checkpoint").exists()
    before = contents(run_dir)
    with pytest.raises(UserError, match=r"without a checkpoint.*keep_checkpoint=true"):
        train("td3", run_dir, "total_frames=70")
    assert contents(run_dir) == before
    train("td3", run_dir, "total_frames=66")  # says that it is finished


@pytest.mark.parametrize("name", ["eval.csv", "train.csv"])
def test_refused_continuation_leaves_the_finished_run_as_it_is(
    name, short_run, finish, contents, tmp_path
):
    run_dir = shutil.copytree(short_run(*RUN), tmp_path / "run")
    (run_dir / name).write_text("")
    (run_dir / "lock").unlink()  # holds the id of the process
    before = contents(run_dir)
    with pytest.raises(UserError, match=f"{name} is shorter than at the last checkpoint"):
        finish(RUN[0], run_dir, *RUN[1:])
    (run_dir / "lock").unlink()
    assert contents(run_dir) == before


def test_first_of_the_best_policies_is_kept_until_a_state_undoes_it(tmp_path):
    best, weight, saved = BestPolicy(tmp_path / "best.pt"), torch.zeros(1), None
    for step, value in enumerate((-2.0, 1.0, 0.5, 1.0, 3.0)):
        best.offer(step, value, lambda: {"weight": weight})  # noqa: B023
        weight += 1  # later training does not change it
        if step == 3:
            saved = best.state_dict()
            assert weights(tmp_path / "best.pt")["weight"].item() == saved["step"] == 1
    assert weights(tmp_path / "best.pt")["weight"].item() == 4
    best.load_state_dict(saved)
    assert weights(tmp_path / "best.pt")["weight"].item() == 1
    best.load_state_dict({})
    assert not (tmp_path / "best.pt").exists()


def test_selected_checkpoints_are_kept_also_of_the_step_from_which_a_run_continues(
    short_run, straight_run, finish, tmp_path, capfd
):
    run_dir = shutil.copytree(short_run(*RUN), tmp_path / "run")
    kept = run_dir / "checkpoint" / "kept"
    kept.mkdir()
    (kept / "step_000000000060.pt.99.unfinished").touch()  # left by a killed process
    before = torch.load(run_dir / "checkpoint" / "step_000000000095.pt", weights_only=True)
    finish(RUN[0], run_dir, *RUN[1:], "keep_checkpoints_at=[60,95,100]")
    names = sorted(file.name for file in kept.iterdir())
    assert names == ["step_000000000095.pt", "step_000000000100.pt"]
    state = torch.load(kept / names[0], weights_only=True)
    assert state["step"] == before["step"]
    replay = [each["parts"]["replay"]["actor_sampler"]["priorities"] for each in (state, before)]
    assert torch.equal(*replay)
    assert "the checkpoint of step 60 cannot be kept" in capfd.readouterr().err
    assert (run_dir / "eval.csv").read_bytes() == (straight_run(*RUN) / "eval.csv").read_bytes()


def test_a_solved_run_ends_after_that_evaluation_and_can_be_continued(
    straight_run, finish, assert_same_run, table, tmp_path
):
    # Every return exceeds this level. The first evaluation that counts is at step 70.
    level = ("solved_at=-1e6", "stop_when_solved=true")
    short, run = straight_run(*RUN, "total_frames=70"), tmp_path / "run"
    for _ in range(2):
        finish(*RUN[:1], run, *RUN[1:], *level)
        assert (run / "eval.csv").read_bytes() == (short / "eval.csv").read_bytes()
        assert table(run / "train.csv") == table(short / "train.csv")
        assert weights(run / "policy.pt")["step"] == 70
        (run / "finished").unlink()  # as if the process had been killed before
    finish(*RUN[:1], run, *RUN[1:], level[0])
    assert_same_run(straight_run(*RUN), run)


def test_a_run_that_cannot_be_solved_is_refused(finish, tmp_path):
    with pytest.raises(UserError, match=r"stop_when_solved=true.*ShortCheetah-v0.*solved_at="):
        finish(*RUN[:1], tmp_path / "run", *RUN[1:], "stop_when_solved=true")
    assert not (tmp_path / "run").exists()
