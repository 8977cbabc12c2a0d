"""Datasets for offline learning: the buffers of runs, and normalized scores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from helpers.datasets import PENDULUM, environment, load
from vmfer_recipes.agent.observations import make_observations
from vmfer_recipes.config.algorithms import TD3BCConfig
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.training import to_config
from vmfer_recipes.offline.scores import reference_returns


@pytest.fixture
def run_copy(recorded_run, tmp_path):
    return shutil.copytree(recorded_run, tmp_path / "run")


def test_all_transitions_of_a_run_are_loaded_as_they_were_stored(recorded_run, checkpoint):
    transitions = load(recorded_run)
    (rows,) = checkpoint(recorded_run)["parts"]["replay"]["storage"]["rows"]
    assert len(transitions) == 100
    for key in ("observation", "action"):
        assert torch.equal(transitions[key], rows["tensors"][key])
    for key in ("observation", "reward", "done", "terminated"):
        assert torch.equal(transitions["next", key], rows["nested"]["next"]["tensors"][key])
    inside = ~transitions["next", "done"][:-1, 0]
    assert torch.equal(
        transitions["next", "observation"][:-1][inside], transitions["observation"][1:][inside]
    )


def test_a_run_in_progress_is_read_and_not_changed(run_copy):
    (run_copy / "finished").unlink()
    being_written = run_copy / "checkpoint" / "step_000000000200.pt.unfinished"
    being_written.touch()
    assert len(load(run_copy)) == 100
    assert being_written.exists()


def test_only_the_time_limit_may_differ_from_that_of_the_run(recorded_run):
    assert len(load(recorded_run, kwargs={"max_episode_steps": 7})) == 100
    with pytest.raises(UserError, match=r"env.kwargs=\{\} there, \{'width': 100\} here"):
        load(recorded_run, kwargs={"width": 100})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows["tensors"]["observation"][3].fill_(torch.nan), "NaN .* transition 3"),
        (lambda rows: rows["tensors"]["action"][7].fill_(1.5), r"\[4.5\] .*\[-3.0\] to \[3.0\]"),
        (lambda rows: rows["tensors"].pop("action"), "holds no replay buffer"),
        (lambda rows: rows["tensors"].update(desired_goal=torch.zeros(100, 2)), "replay=her"),
    ],
)
def test_a_bad_buffer_is_an_error_with_value_and_cure(run_copy, change, message):
    (file,) = (run_copy / "checkpoint" / "segments").iterdir()
    rows = torch.load(file, weights_only=True)
    change(rows)
    torch.save(rows, file)
    with pytest.raises(UserError, match=message) as caught:
        load(run_copy)
    assert ": " in str(caught.value)


def test_a_run_without_a_checkpoint_is_refused_with_the_cure(run_copy):
    shutil.rmtree(run_copy / "checkpoint")
    with pytest.raises(UserError, match="keep_checkpoint=true"):
        load(run_copy)
    (run_copy / "finished").unlink()
    with pytest.raises(UserError, match="train it longer"):
        load(run_copy)


def test_a_key_normalize_without_a_dataset_changes_nothing(configuration, tmp_path):
    cfg = to_config(configuration("td3", tmp_path))
    cfg.normalize = True  # as a custom recipe may define it
    assert make_observations(environment(PENDULUM), cfg).normalization() is None


def test_one_path_in_several_spellings_is_one_dataset(configuration, tmp_path):
    spellings = {
        "runs/a/": "runs/a",
        "./runs/a": "runs/a",
        "~/runs/a/": str(Path.home() / "runs" / "a"),
        "minari:mujoco/hopper/medium-v0": "minari:mujoco/hopper/medium-v0",
    }
    for given, name in spellings.items():
        assert TD3BCConfig(dataset=given).dataset == name
    overrides = ("dataset='~/runs/a/'", "init_random_frames=0")
    cfg = to_config(configuration("td3_bc", tmp_path, *overrides))
    assert cfg.as_dict()["dataset"] == spellings["~/runs/a/"]


@pytest.mark.parametrize(
    ("name", "value", "score"),
    [  # scores that D4RL's get_normalized_score gives, times 100
        ("Hopper-v4", 3234.3, 100.0),
        ("Hopper-v5", -20.272305, 0.0),
        ("HalfCheetah-v4", 5927.410524, 50.0),
    ],
)
def test_scores_follow_the_reference_returns_of_d4rl(name, value, score, tmp_path):
    reference = reference_returns(str(tmp_path), EnvConfig(name))
    assert reference.score(value) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    ("dataset", "env"),
    [
        (None, EnvConfig("Hopper-v4")),
        ("runs/a", EnvConfig(PENDULUM)),
        ("minari:removed/data-v0", EnvConfig("Hopper-v4")),
        ("runs/a", EnvConfig("Hopper-v4", kwargs={"frame_skip": 2})),
    ],
)
def test_there_is_no_score_without_reference_returns(dataset, env):
    assert reference_returns(dataset, env) is None
