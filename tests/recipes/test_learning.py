"""The recipes learn a task that a random policy fails, within a few hundred steps."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

SAMPLERS = ("uniform", "fresh", "vmf_uncertainty", "vmf_rank")
# A random policy reaches -7.8; a perfect one, which arrives in one or two steps, about -0.3.
SOLVED = -2.0


class Point(gym.Env):
    """A point in a square. Actions move it, and the reward is higher near the center."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.position.copy(), {}

    def step(self, action):
        self.position = np.clip(self.position + 0.5 * action, -1, 1).astype(np.float32)
        return self.position.copy(), -float(np.linalg.norm(self.position)), False, False, {}


@pytest.fixture(autouse=True)
def _task():
    gym.register("Point-v0", Point, max_episode_steps=10)
    yield
    del gym.registry["Point-v0"]


@pytest.fixture
def final_return(train, table, tmp_path):
    def run(algorithm, *overrides):
        options = {
            "td3": ("total_frames=330", "exploration_noise=0.2"),
            "sac": ("total_frames=240", "alpha_init=0.1", "alpha_lr=0.005"),
        }[algorithm]
        run_dir = train(
            algorithm,
            tmp_path / "run",
            "env.name=Point-v0",
            "hidden=[32,32]",
            "batch_size=64",
            "init_random_frames=100",
            "eval_interval=1000",
            "num_eval_episodes=10",
            "checkpoint_interval=1000",
            "gamma=0.8",
            "tau=0.02",
            "critic_lr=0.005",
            "actor_lr=0.005",
            *options,
            *overrides,
        )
        return float(table(run_dir / "eval.csv")[-1]["return_mean"])

    return run


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("algorithm", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_every_algorithm_with_every_sampler_learns_to_reach_the_middle(
    final_return, algorithm, sampler
):
    assert final_return(algorithm, f"sampler={sampler}") > SOLVED


def test_an_actor_that_does_not_learn_fails_the_same_criterion(final_return):
    assert final_return("td3", "actor_lr=0.0") < 2 * SOLVED
