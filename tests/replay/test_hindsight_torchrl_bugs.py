"""Bugs of TorchRL 0.14.1's HERReplayBuffer that this package does not have."""

import pytest
import torch
from torchrl.envs.transforms import CatTensors

from helpers.goal_world import (
    ORIGINAL,
    World,
    assert_equal,
    each_strategy,
    make,
    pairs,
    transitions,
)

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


@each_strategy
def test_an_episode_across_the_last_slot_keeps_its_own_goals(strategy):
    # There: rows after the last end before the wrap get the range of the previous episode.
    buffer = make(strategy=strategy, trajectory_key="none")
    buffer.extend(transitions(range(28), [number % 14 == 13 for number in range(28)]))
    buffer.extend(transitions(range(28, 42), [number == 41 for number in range(28, 42)]))
    numbers, goals = pairs(buffer.sample(2000))
    across = {goal for number, goal in zip(numbers, goals, strict=True) if number >= 28}
    assert across == ({41} if strategy == "final" else set(range(28, 42)))
    cut = {goal for number, goal in zip(numbers, goals, strict=True) if number < 14}
    assert cut == ({13} if strategy == "final" else set(range(10, 14)))


def test_the_nearest_goal_is_that_of_the_next_state():
    # There: the achieved goal before the action, which needs no action to reach.
    buffer = make()
    buffer.extend(transitions([5], [True], [0]))
    batch = buffer.sample()
    assert torch.equal(batch["desired_goal"], batch["next", "achieved_goal"])


def test_buffer_transforms_see_the_new_goals():
    # There: transforms run before relabeling.
    keys = ["observation", "desired_goal"]
    buffer = make(transform=CatTensors(keys, "input", del_keys=False, sort=False))
    buffer.extend(World().steps(40))
    for batch in (buffer.sample(), buffer.sample_actor(keys=["input", "desired_goal"])):
        assert (batch["desired_goal"] != ORIGINAL).all()
        assert torch.equal(batch["input"][:, 3:], batch["desired_goal"])


def test_one_seed_gives_identical_samples_for_any_global_generator():
    # There: goals are drawn by the global generator.
    rows = World().steps(50)
    samples = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        buffer = make(her_ratio=0.5, seed=7)
        buffer.extend(rows.clone())
        samples.append((buffer.sample(), buffer.sample_actor()))
    for first, second in zip(*samples, strict=True):
        assert_equal(first, second)
