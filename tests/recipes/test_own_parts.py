"""Custom samplers and recipes from modules outside the repository."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from torchrl_vmfer import RankPrioritizedSampler
from vmfer_recipes.config.launch import train as vmfer_train
from vmfer_recipes.config.plugins import import_module
from vmfer_recipes.td3 import main as td3

SAMPLERS = '''
from torchrl_vmfer import RankPrioritizedSampler, VMFSampler


class Mine(VMFSampler):
    pass


class MyReplay(RankPrioritizedSampler):
    pass


class ByTD(RankPrioritizedSampler):
    """Records the TD errors that it receives, for the actor."""
    signal = "td_error"
    received = []

    def update_priority(self, index, priority, **kwargs):
        self.received.append((index.clone(), priority.clone()))
        return super().update_priority(index, priority, **kwargs)


class Strange(VMFSampler):
    signal = "mood"


class NoSampler:
    def __init__(self):
        raise AssertionError("It must not be called.")
'''
ALGORITHM = '''
from dataclasses import dataclass
from vmfer_recipes.td3 import make_agent, train
from vmfer_recipes.config.keys import key
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.run.session import Session


@dataclass
class MyConfig(TD3Config):
    """TD3 with an additional key."""

    scale: float = key(2.0, "factor of the noise", low=0)
    init_random_frames: int = 60


@recipe("td3", MyConfig)
def main(cfg):
    session = Session(cfg)
    if not session.finished:
        cfg.exploration_noise *= cfg.scale
        train(cfg, session, make_agent(cfg))
'''
SMALL = (
    *("env=InvertedPendulum-v4", "hidden=[16,16]", "batch_size=32", "replay.buffer_size=5000"),
    *("init_random_frames=60", "total_frames=161", "eval_interval=100", "num_eval_episodes=1"),
    *("log_interval=50", "checkpoint_interval=65"),
)

pytestmark = pytest.mark.usefixtures("outside")


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Path:
    """A user's directory with two modules, in which programs are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_samplers.py").write_text(SAMPLERS)
    (tmp_path / "my_algorithm.py").write_text(ALGORITHM)
    yield tmp_path
    for name in ("my_samplers", "my_algorithm", "my_package"):
        sys.modules.pop(name, None)


def policy(run_dir: Path) -> dict:
    return dict(torch.load(run_dir / "policy.pt", weights_only=True))


@pytest.mark.parametrize(
    ("own", "built_in"),
    [
        (["sampler=my_samplers.Mine", "sampler.kwargs.mode=rank"], "sampler=vmf_rank"),
        (
            ["replay=my_samplers.MyReplay", "replay.kwargs={alpha: 0.7, beta: 0.5}"],
            "replay=per_rank",
        ),
    ],
    ids=["sampler", "replay"],
)
def test_custom_sampler_equal_to_a_built_in_one_gives_the_same_run(
    own, built_in, outside, execute, assert_equal
):
    """Its priorities, the factors and TD errors, are the same too."""
    execute(td3, *SMALL, *own, "run_dir=own")
    execute(td3, *SMALL, built_in, "run_dir=built_in")
    assert Path("own/eval.csv").read_bytes() == Path("built_in/eval.csv").read_bytes()
    assert_equal(policy(outside / "own"), policy(outside / "built_in"))


def test_custom_sampler_of_the_actor_receives_the_signal_that_it_names(execute, monkeypatch):
    """With ``signal="td_error"``, the TD errors that the critics' sampler receives."""
    received = []
    update = RankPrioritizedSampler.update_priority

    def record(self, index, priority, **kwargs):
        if type(self) is RankPrioritizedSampler:
            received.append((index.clone(), priority.clone()))
        return update(self, index, priority, **kwargs)

    monkeypatch.setattr(RankPrioritizedSampler, "update_priority", record)
    short = ("total_frames=70", "sampler=my_samplers.ByTD", "replay=per_rank", "run_dir=run")
    execute(td3, *SMALL, *short)
    own = sys.modules["my_samplers"].ByTD.received
    assert len(own) == len(received) == 10
    for (index, td_error), (expected_index, expected) in zip(own, received, strict=True):
        assert torch.equal(index, expected_index)
        assert torch.equal(td_error, expected)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("sampler=no_such_module.Sampler", "the module no_such_module cannot be imported"),
        ("sampler=my_samplers.Absent", "my_samplers has no such name"),
        ("replay=my_samplers.NoSampler", "must be a class derived from Sampler"),
        ("sampler=my_samplers.torch", "must be a class derived from Sampler"),
        ("sampler=os.system", "must be a class derived from Sampler"),
        (
            "sampler=my_samplers.Mine sampler.kwargs.speed=3",
            "could not be created with {'speed': 3} (TypeError",
        ),
        ("sampler=my_samplers.Strange", "has signal='mood', but the recipes provide factor,"),
        ("sampler.kwargs.power=2", "sampler.kwargs has no effect on sampler=vmf_uncertainty"),
        ("replay=per replay.kwargs.x=1", "replay.kwargs has no effect on replay=per"),
        ("env=my_samplers.Mine", "There is no env=my_samplers.Mine"),
    ],
)
def test_invalid_sampler_is_reported_in_one_line_and_writes_nothing(
    choice, message, error_of, outside
):
    assert message in error_of(td3, *SMALL, *choice.split())
    assert not (outside / "runs").exists()


def test_custom_algorithm_has_its_own_directory_and_keys_and_resumes_exactly(
    outside, execute, assert_same_run, capsys
):
    execute(vmfer_train, "my_algorithm", *SMALL, "run_dir=straight", "scale=1.5")
    straight = outside / "straight"
    config = (straight / "config.yaml").read_text()
    assert "algorithm: my_algorithm" in config
    assert "scale: 1.5" in config
    execute(vmfer_train, "my_algorithm", *SMALL, "scale=1.5", "total_frames=90")
    (end,) = (outside / "runs").rglob("finished")
    assert end.relative_to(outside).parts[:2] == ("runs", "my_algorithm")
    execute(vmfer_train, "my_algorithm", *SMALL, "scale=1.5")
    assert_same_run(straight, end.parent)


def test_custom_algorithm_lists_its_keys_and_train_the_algorithms(run_program):
    _, text, _ = run_program(vmfer_train, "my_algorithm", "--help")
    assert text.startswith("Usage: vmfer-train my_algorithm [group=choice")
    assert "TD3 with an additional key." in text
    assert re.search("scale=2 +factor of the noise", text)
    assert re.search("init_random_frames=60 +steps of random actions before learning", text)
    assert "sampler=vmf_uncertainty" in text
    _, text, _ = run_program(vmfer_train, "--help")
    assert {"  td3  ", "  sac  "} <= set(re.findall(r"  \w+  ", text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The algorithm comes first"),
        (["env=Hopper-v4", "td3"], "The algorithm comes first"),
        (["my_samplers"], "The module my_samplers has no recipe"),
        (["ppo"], "the module ppo cannot be imported"),
        (["./my_folder/my_td3.py"], "write my_folder.my_td3, or run it with"),
        (["my_algorithm", *SMALL, "scale=-1"], "scale must be a number from 0"),
        (["my_algorithm", *SMALL, "scael=1"], "Did you mean: scale"),
        (["my_algorithm", *SMALL, "policy_delay=x"], "policy_delay must be a whole number"),
    ],
)
def test_train_reports_unknown_algorithms_and_invalid_keys_in_one_line(
    arguments, message, error_of
):
    assert message in error_of(vmfer_train, *arguments)


def test_recipe_in_a_package_is_named_after_the_package(outside, execute, capsys):
    (outside / "my_package").mkdir()
    shutil.copy("my_algorithm.py", "my_package/__init__.py")
    execute(import_module("my_package", "my_package").main, "--cfg", "job")
    assert "algorithm: my_package\n" in capsys.readouterr().out
