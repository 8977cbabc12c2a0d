"""Errors of hindsight relabeling: wrong arguments, rewards and data."""

import re

import pytest
import torch
from torchrl.data import LazyTensorStorage, TensorDictMaxValueWriter
from torchrl.data.replay_buffers.sample_units import Sequence

from helpers.goal_world import World, make


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"her_ratio": 1.2}, ValueError, r"\[0, 1\], got 1.2"),
        ({"her_ratio": -0.1}, ValueError, r"\[0, 1\], got -0.1"),
        ({"her_ratio": float("nan")}, ValueError, "got nan"),
        ({"strategy": "random"}, ValueError, "'future', 'final' or 'episode'.*'random'"),
        ({"reward_fn": None}, TypeError, "gymnasium_reward"),
        ({"sample_unit": Sequence(length=2)}, ValueError, "leave out sample_unit"),
        ({"writer": TensorDictMaxValueWriter()}, ValueError, "TensorDictMaxValueWriter: leave"),
        ({"storage": lambda n: LazyTensorStorage(n, ndim=2)}, ValueError, "ndim=2: flatten"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_do(kwargs, error, message):
    with pytest.raises(error, match=message):
        make(**kwargs)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda a, d: torch.zeros(3), r"shape \[3\] for 16 goals.*\[16\] or \[16, 1\]"),
        (lambda a, d: torch.zeros(len(a), 2), r"shape \[16, 2\]"),
        (lambda a, d: torch.tensor(0.0), r"shape \[\]"),
        (lambda a, d: a[:, 0] * torch.nan, r"returned nan for the achieved goal \["),
        (lambda a, d: a[:, :1] + torch.inf, "returned inf"),
    ],
)
def test_a_bad_reward_is_reported_with_shape_or_goals(returned, message):
    buffer = make(reward_fn=returned)
    buffer.extend(World().steps(20))
    with pytest.raises(ValueError, match=message):
        buffer.sample()


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("desired_goal", "goal_key"),
        (("next", "achieved_goal"), "achieved_goal_key"),
        (("next", "reward"), "reward_key"),
        (("next", "done"), "done_key"),
    ],
)
def test_a_missing_entry_is_reported_by_name(key, argument):
    buffer = make()
    buffer.extend(World().steps(20).exclude(key))
    for sample in (buffer.sample, buffer.sample_actor):
        with pytest.raises(ValueError, match=f"{re.escape(str(key))}.*`{argument}=`"):
            sample()


@pytest.mark.parametrize(
    ("key", "message"),
    [("desired_goal", r"'desired_goal' has the shape \[3\]"), (("next", "reward"), "one reward")],
)
def test_entries_of_a_wrong_shape_are_rejected(key, message):
    buffer = make()
    rows = World().steps(20)
    rows[key] = torch.zeros(20, 3)
    buffer.extend(rows)
    with pytest.raises(ValueError, match=message):
        buffer.sample()
