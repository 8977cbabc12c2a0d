"""The tasks in NumPy: batches equal single environments, and action repeat counts their steps."""

import gymnasium as gym
import numpy as np
import pytest

from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.tasks import TaskVector

TASKS = {"GoalReaching3-v0": 3, "GoalReaching6-v0": 6, "PlanarQuadrotor-v0": 2}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("members", [1, 2, 7, 33])
def test_a_batch_equals_single_environments_bit_for_bit(name, members):
    singles = [gym.make(name) for _ in range(members)]
    batched = [gym.make(name).unwrapped for _ in range(members)]
    vector = TaskVector(batched)
    for seed, (single, other) in enumerate(zip(singles, batched, strict=True)):
        assert np.array_equal(single.reset(seed=seed)[0], other.reset(seed=seed)[0])
    rng = np.random.default_rng(0)
    for _ in range(230):
        actions = rng.uniform(-1.2, 1.2, (members, TASKS[name])).astype(np.float32)
        rows = vector.step(actions)
        for number, single in enumerate(singles):
            alone = single.step(actions[number])
            for row, value in zip(rows, alone[:4], strict=True):
                assert np.array_equal(row[number], value)
            if alone[3]:
                assert np.array_equal(single.reset()[0], batched[number].reset()[0])


def test_action_repeat_adds_rewards_and_ends_with_the_episode():
    repeated = make_environment(EnvConfig(name="GoalReaching3-v0", action_repeat=3), 0).simulator
    single = make_environment(EnvConfig(name="GoalReaching3-v0"), 0).simulator
    repeated.reset(seed=1)
    single.reset(seed=1)
    action = np.full(3, 0.5, np.float32)
    for number in range(34):
        steps = [single.step(action) for _ in range(3 if number < 33 else 1)]
        observation, reward, _, truncated, _ = repeated.step(action)
        assert np.array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(sum(step[1] for step in steps))
        assert truncated == steps[-1][3] == (number == 33)
