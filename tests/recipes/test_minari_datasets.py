"""Datasets for offline learning: files in Minari's format."""

from __future__ import annotations

import json
import shutil
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

import helpers.environments  # noqa: F401  # registers the task
from helpers.datasets import PENDULUM, environment, load
from helpers.minari_data import record
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.offline.datasets import load_transitions
from vmfer_recipes.offline.scores import reference_returns

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")

GOAL = "Lever-v0"  # its observations are dictionaries of dictionaries


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    scores = {"ref_min_score": 2.0, "ref_max_score": 12.0}
    root = tmp_path_factory.mktemp("minari")
    return record(root, PENDULUM, "test/pendulum/random-v0", 6, **scores)


@pytest.fixture
def pendulum_copy(pendulum, tmp_path):
    return shutil.copytree(pendulum.folder, tmp_path / "dataset")


def test_the_transitions_of_minari_are_those_of_the_environment(pendulum):
    transitions = load(pendulum.folder)
    before, action, after, reward, terminated, truncated = map(
        np.array, zip(*pendulum.transitions, strict=True)
    )
    assert terminated.any()
    assert truncated.any()
    assert len(transitions) == len(action)
    expected = {
        "observation": before,
        "action": action / 3,
        ("next", "observation"): after,
        ("next", "reward"): reward[:, None],
    }
    for key, value in expected.items():
        assert transitions[key].dtype == torch.float32
        np.testing.assert_allclose(transitions[key].numpy(), value, rtol=1e-6, atol=1e-7)
    # The TD target bootstraps from the last state of a truncated episode.
    np.testing.assert_array_equal(transitions["next", "terminated"].numpy()[:, 0], terminated)
    np.testing.assert_array_equal(transitions["next", "done"].numpy()[:, 0], terminated | truncated)


def test_a_data_set_is_found_by_its_id_and_by_its_folder(pendulum, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(pendulum.root))
    by_id = load(f"minari:{pendulum.id}")
    for folder in (pendulum.folder, pendulum.folder / "data"):
        assert (load(folder) == by_id).all()
    with pytest.raises(UserError, match="minari download test/other-v0"):
        load("minari:test/other-v0")


def test_observations_with_goals_are_concatenated_as_in_our_environment(tmp_path_factory):
    env = environment(GOAL)
    own, actions = env.own_observation_space, env.own_action_space
    spaces = {"observation_space": own, "action_space": actions}
    data = record(tmp_path_factory.mktemp("minari"), GOAL, "test/goal-v0", 4, env=None, **spaces)
    transitions = load(data.folder, GOAL)
    own = gym.spaces.Dict({key: own[key] for key in own.spaces if key != "achieved_goal"})
    for key, position in (("observation", 0), (("next", "observation"), 2)):
        flat = [
            gym.spaces.flatten(own, {key: each[position][key] for key in own.spaces})
            for each in data.transitions
        ]
        np.testing.assert_array_equal(transitions[key].numpy(), np.array(flat, np.float32))
    with pytest.raises(UserError, match=r"\[24, 2\] .*needs \[24, 4\]"):
        load(data.folder)
    change_data(data.folder, lambda file: file["episode_2/observations"].pop("desired_goal"))
    with pytest.raises(UserError, match=r"has the observations achieved_goal\.x, observation, but"):
        load(data.folder, GOAL)


def change_metadata(folder, **entries):
    file = folder / "data" / "metadata.json"
    metadata = json.loads(file.read_text()) | entries
    file.write_text(json.dumps(metadata))
    return metadata


def change_data(folder, change):
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        change(file)


def replace(name, value):
    """A change of one array: ``value``, or a function of what it holds."""

    def change(file):
        new = value(file[name][()]) if callable(value) else value
        del file[name]
        file[name] = new

    return change


def set_value(name, value):
    return lambda file: file[name].__setitem__(0, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("episode_0/rewards", np.nan), "NaN or infinity in 'next reward'.*transition 0"),
        (set_value("episode_0/actions", 3.5), r"action \[3.5\] .*outside the bounds .*clip"),
        (replace("episode_1/rewards", np.zeros(99)), "has 99 rewards, but"),
        (replace("episode_1/observations", np.zeros((99, 4))), "but observations for 98 steps"),
        (replace("episode_1/actions", "go left"), "episode_1/actions is not a numeric array"),
        (
            replace("episode_1/observations", lambda old: old.repeat(2, 1)),
            "whose observations have",
        ),
        (
            replace("episode_1/actions", lambda old: old.repeat(2, 1)),
            "whose actions have different",
        ),
        (lambda file: file.pop("episode_1/terminations"), "cannot be read"),
        (lambda file: file.clear(), "holds no transitions: choose"),
    ],
)
def test_bad_data_are_an_error_with_value_and_cure(pendulum_copy, change, message):
    change_data(pendulum_copy, change)
    with pytest.raises(UserError, match=message) as caught:
        load(pendulum_copy)
    assert ": " in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"env_spec": json.dumps({"id": "Hopper-v5"})}, "Hopper-v5 there, InvertedPendulum-v4"),
        (
            {"env_spec": json.dumps({"id": PENDULUM, "kwargs": {"frame_skip": 4}})},
            r"env.kwargs=\{'frame_skip': 4\} there, \{\} here",
        ),
        ({"env_spec": "{"}, "cannot be read"),
        ({"data_format": "arrow"}, "only hdf5 is supported"),
    ],
)
def test_the_metadata_are_checked(pendulum_copy, entries, message):
    change_metadata(pendulum_copy, **entries)
    with pytest.raises(UserError, match=message):
        load(pendulum_copy)


def test_the_same_task_under_a_name_that_gymnasium_removed_is_accepted(pendulum_copy):
    change_metadata(pendulum_copy, env_spec=json.dumps({"id": "InvertedPendulum-v2"}))
    assert len(load(pendulum_copy)) > 0


def test_versions_of_other_tasks_are_different_environments(pendulum_copy):
    change_metadata(pendulum_copy, env_spec=json.dumps({"id": "Mine-v2"}))
    with pytest.raises(UserError, match="Mine-v2 there, Mine-v4 here"):
        load_transitions(str(pendulum_copy), environment(PENDULUM), EnvConfig(name="Mine-v4"))


def test_episodes_without_steps_are_skipped(pendulum_copy):
    def empty(file):
        for name in ("actions", "rewards", "terminations", "truncations"):
            replace(f"episode_0/{name}", lambda old: old[:0])(file)
        replace("episode_0/observations", lambda old: old[:1])(file)

    before = load(pendulum_copy)
    with h5py.File(pendulum_copy / "data" / "main_data.hdf5") as file:
        steps = len(file["episode_0/rewards"])
    change_data(pendulum_copy, empty)
    assert (load(pendulum_copy) == before[steps:]).all()


@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
def test_damaged_files_are_refused(pendulum_copy, file):
    (pendulum_copy / "data" / file).write_bytes(b"\x00damaged")
    with pytest.raises(UserError, match=rf"{file} cannot be read"):
        load(pendulum_copy)


def test_the_environment_that_a_data_set_names_is_not_made(pendulum_copy, tmp_path):
    marker = tmp_path / "executed"
    spec = {"id": PENDULUM, "entry_point": "os:mkdir", "kwargs": {"path": str(marker)}}
    metadata = change_metadata(pendulum_copy, env_spec=json.dumps(spec))
    for name in ("observation_space", "action_space"):  # without them, minari makes it
        metadata.pop(name)
    (pendulum_copy / "data" / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(UserError, match="comes from another environment"):
        load(pendulum_copy)
    assert not marker.exists()


def test_without_h5py_the_error_names_the_command(pendulum, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"needs the package h5py: pip install '.\[minari\]'"):
        load(pendulum.folder)


def test_the_references_of_a_data_set_come_first(pendulum):
    reference = reference_returns(str(pendulum.folder), EnvConfig("Hopper-v4"))
    data = minari.MinariDataset(pendulum.folder / "data")
    returns = np.array([2.0, 7.0, 15.0])
    np.testing.assert_allclose(
        [reference.score(each) for each in returns],
        100 * minari.get_normalized_score(data, returns),
    )
