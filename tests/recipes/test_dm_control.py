"""DeepMind Control Suite tasks step, end, resume and train like Gymnasium's."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.saved_rows import rows_in
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment

suite = pytest.importorskip("dm_control.suite", exc_type=ImportError)


def make(name: str, seed: int = 0, **kwargs):
    return make_environment(EnvConfig(name, backend="dm_control", kwargs=kwargs), seed)


def flat(observation) -> np.ndarray:
    parts = [np.ravel(part) for part in observation.values()]
    return np.concatenate(parts).astype(np.float32)


def test_steps_equal_those_of_the_suite():
    simulator = make("cartpole-swingup").simulator
    reference = suite.load("cartpole", "swingup", task_kwargs={"random": 5})
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(simulator.reset(seed=5)[0], flat(reference.reset().observation))
    for _ in range(20):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        observation, reward, terminated, truncated, _ = simulator.step(action)
        step = reference.step(action)
        np.testing.assert_array_equal(observation, flat(step.observation))
        assert reward == step.reward
        assert not terminated
        assert not truncated


def test_time_limit_truncates_and_a_discount_of_zero_terminates():
    simulator = make("cheetah/run", task_kwargs={"time_limit": 0.05}).simulator
    simulator.reset(seed=0)
    ends = [simulator.step(np.zeros(6, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    simulator = make("cheetah-run").simulator
    simulator.reset(seed=0)
    simulator.unwrapped.task.get_termination = lambda physics: 0.0
    assert simulator.step(np.zeros(6, np.float32))[2:4] == (True, False)


def test_crashed_run_ends_like_an_uninterrupted_one(assert_resumes_exactly, checkpoint):
    options = (
        "env.name=reacher-easy", "env.backend=dm_control", "num_envs=2",
        "++env.kwargs={task_kwargs: {time_limit: 0.5}}", "total_frames=111",
        "checkpoint_interval=65", "eval_interval=70",
    )  # fmt: skip
    straight = assert_resumes_exactly("td3", *options)
    following = rows_in(checkpoint(straight)["parts"]["replay"])["next"]
    assert following["done"].any()
    assert not following["terminated"].any()


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("cheeta-run", {}, "no task 'cheeta-run'. Did you mean: cheetah-run"),
        ("HalfCheetah-v4", {}, "The Control Suite has no task 'HalfCheetah-v4'"),
        ("cheetah-run", {"speed": 1}, "unexpected keyword argument 'speed'.*env.kwargs"),
    ],
)
def test_user_errors_are_explained_in_one_line(name, kwargs, message):
    with pytest.raises(UserError, match=message):
        make(name, **kwargs)
