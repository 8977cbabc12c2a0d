"""Bugs of TorchRL 0.14.1's HERReplayBuffer that this package does not have."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.transforms import CatTensors

from helpers.hindsight import (
    ORIGINAL,
    World,
    assert_equal,
    assert_goals_are_those_enumerated,
    each_strategy,
    make,
    pairs,
    transitions,
)

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def test_a_full_buffer_is_extended_by_several_rows():
    # There: RuntimeError at the next sample.
    world, buffer = World(), make()
    for _ in range(20):
        buffer.extend(world.steps(7))
        buffer.sample()
    assert_goals_are_those_enumerated(buffer, world, "future")


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


@each_strategy
def test_interleaved_environments_are_not_mixed(strategy):
    # There: two thirds of the goals came from the other environment.
    buffer = make(strategy=strategy, batch_size=512)
    for start in range(0, 90, 6):
        numbers = [100 * environment + start + step for environment in (1, 2) for step in range(6)]
        done = [start == 84 and number % 100 == 89 for number in numbers]
        buffer.extend(transitions(numbers, done, [number // 100 for number in numbers]))
        numbers, goals = pairs(buffer.sample())
        assert [number // 100 for number in numbers] == [goal // 100 for goal in goals]


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


def test_loading_does_not_change_the_callers_state():
    # There: an entry is removed.
    buffer = make()
    buffer.extend(World().steps(50))
    state = buffer.state_dict()
    before = copy.deepcopy(state)
    make().load_state_dict(state)
    assert state.keys() == before.keys()
    assert set(TensorDict(state["actor_sampler"]).keys()) == set(before["actor_sampler"])
    assert torch.equal(state["actor_sampler"]["priorities"], before["actor_sampler"]["priorities"])
