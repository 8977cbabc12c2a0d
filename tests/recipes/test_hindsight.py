"""Hindsight replay in the recipes: stored data, network inputs, and resuming."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from helpers.saved_rows import rows_in
from torchrl_vmfer import HindsightReplayBuffer
from vmfer_recipes import evaluate
from vmfer_recipes.agent.observations import NormalizedObservations, RunningStatistics
from vmfer_recipes.agent.replay import ENVIRONMENT
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment

# The buffer of 120 rows is full and its oldest episode cut off before the crash at step 155.
HER = ("env=FetchReach-v4", "replay=her", "hidden=[16,16]", "replay.buffer_size=120")
SAMPLERS = ("uniform", "fresh", "vmf_uncertainty", "vmf_rank", "vmf_ema", "vmf_pool", "vmf_direct")
SMALL = {"vmf_pool": ["sampler.pool_size=64"], "vmf_direct": ["sampler.num_candidates=48"]}


def overrides(sampler):
    return [*HER, *f"sampler={sampler}".split(), *SMALL.get(sampler, [])]


@pytest.mark.parametrize(
    ("algorithm", "sampler"),
    [
        ("td3", "vmf_pool"),
        pytest.param("sac", "vmf_direct", marks=pytest.mark.slow),
        ("td3", "vmf_rank n_step=3"),
        *(
            pytest.param("td3", sampler, marks=pytest.mark.slow)
            for sampler in SAMPLERS
            if sampler != "vmf_pool"
        ),
    ],
)
def test_crashed_run_ends_like_an_uninterrupted_one(
    algorithm, sampler, assert_crashed_run_resumes_exactly
):
    # Later keys take precedence: the environment differs from that of other tests of resuming.
    options = [*overrides(sampler), "env.name=FetchReach-v4"]
    assert_crashed_run_resumes_exactly(algorithm, *options)


@pytest.fixture(scope="module")
def parts(train, checkpoint, tmp_path_factory):
    """The parts of the checkpoint of a run that does not learn."""
    options = ("critic_lr=0", "actor_lr=0", "total_frames=110", "checkpoint_interval=110")
    run_dir = tmp_path_factory.mktemp("her") / "run"
    return checkpoint(train("td3", run_dir, *overrides("uniform"), *options))["parts"]


def test_raw_observations_and_goals_are_stored(parts):
    rows = rows_in(parts["replay"])
    assert set(rows) == {"observation", "desired_goal", "action", "next"}
    assert set(rows["next"]) == {"observation", "achieved_goal", "reward", "done", "terminated"}
    assert rows["observation"].shape == (110, 10)
    # The first three numbers of FetchReach's observation are the position, which is the
    # achieved goal: about 1 m, unlike normalized values.
    following = rows["next"]["observation"][:, :3]
    torch.testing.assert_close(following, rows["next"]["achieved_goal"])
    assert following.mean() > 0.5
    assert not rows["next"]["terminated"].any()
    assert rows["next"]["done"].nonzero()[:, 0].tolist() == [49, 99]


def test_statistics_cover_all_collected_data(parts):
    rows, seen = rows_in(parts["replay"]), parts["observations"]
    observation = rows["observation"].double()
    torch.testing.assert_close(seen["observation.mean"], observation.mean(0))
    torch.testing.assert_close(
        seen["observation.squares"] / 110, observation.var(0, unbiased=False)
    )
    goals = torch.cat([rows["desired_goal"], rows["next"]["achieved_goal"]]).double()
    torch.testing.assert_close(seen["goal.mean"], goals.mean(0))
    torch.testing.assert_close(seen["goal.squares"] / 220, goals.var(0, unbiased=False))


def test_evaluate_plays_with_the_statistics_of_the_run_and_shows_the_success_rate(
    train, table, execute, tmp_path, capsys
):
    train("td3", tmp_path, *overrides("vmf_ema"), "num_eval_episodes=2")
    assert "success rate" in capsys.readouterr().out
    evaluations = table(tmp_path / "eval.csv")
    assert all(float(row["success_rate"]) in (0.0, 0.5, 1.0) for row in evaluations)
    # The seed of the evaluations of the run.
    execute(evaluate.main, str(tmp_path), "episodes=2", "seed=1000000")
    output = capsys.readouterr().out
    assert f"Return {float(evaluations[-1]['return_mean']):.1f} ±" in output
    assert "success rate" in output


def test_an_environment_without_goals_is_rejected(train, tmp_path):
    with pytest.raises(UserError, match=r"Hopper-v4 has none.*FetchReach-v4"):
        train("td3", tmp_path, "replay=her", "env=Hopper-v4")


def test_goals_without_hindsight_are_part_of_the_observation():
    env = make_environment(EnvConfig("FetchReach-v4"), 0)
    plain = env.reset()["observation"]
    assert plain.shape == (10 + 3,)
    with pytest.raises(UserError, match="needs an environment with goals"):
        make_environment(EnvConfig("Hopper-v4"), 0, goals=True)


class TestRunningStatistics:
    def test_equal_numpy_for_any_chunk_sizes(self):
        data = np.random.default_rng(0).normal([3, -2, 1e4], [1, 5, 0.1], (500, 3))
        statistics = RunningStatistics(3)
        for portion in np.split(data, [1, 2, 40, 300]):
            statistics.add(torch.from_numpy(portion))
        assert statistics.count == 500
        np.testing.assert_allclose(statistics.mean, data.mean(0), rtol=1e-12)
        np.testing.assert_allclose(statistics.squares / 500, data.var(0), rtol=1e-8)

    def test_normalized_has_mean_0_and_deviation_1(self):
        data = torch.randn(400, 2) * torch.tensor([3.0, 0.2]) + torch.tensor([5.0, -1.0])
        statistics = RunningStatistics(2)
        statistics.add(data)
        seen = statistics.normalized(data)
        assert seen.dtype == torch.float32
        torch.testing.assert_close(seen.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(seen.std(0, unbiased=False), torch.ones(2))

    def test_constant_numbers_and_those_before_the_first_observation_stay_finite(self):
        statistics = RunningStatistics(1)
        statistics.add(torch.full((10, 1), 2.0))
        assert statistics.normalized(torch.tensor([[2.0], [2.01]])).tolist() == [
            [0.0],
            [pytest.approx(1.0, rel=1e-4)],
        ]
        assert RunningStatistics(1).normalized(torch.ones(1, 1)).isfinite().all()


def test_observations_clips_and_uses_the_drawn_goal_for_both_observations():
    statistics = (RunningStatistics(size) for size in (2, 1))
    observations = NormalizedObservations(*statistics, clip=1.5, device="cpu")
    data = TensorDict({"observation": torch.randn(50, 2), "desired_goal": torch.randn(50, 1)}, [50])
    data["next"] = TensorDict({"achieved_goal": torch.randn(50, 1)}, [50])
    observations.learn(data)
    raw = {"observation": torch.tensor([[0.0, 100.0]]), "desired_goal": torch.zeros(1, 1)}
    batch = TensorDict(
        {**raw, "next": TensorDict({"observation": torch.tensor([[-100.0, 0.0]])}, [1])}, [1]
    )
    seen = observations(batch)
    assert seen["observation"].shape == seen["next", "observation"].shape == (1, 3)
    assert seen["observation"][0, 1] == 1.5
    assert seen["next", "observation"][0, 0] == -1.5
    assert torch.equal(seen["observation"][:, 2], seen["next", "observation"][:, 2])


class Memory:
    """An object that no checkpoint can save."""


class Climb(gymnasium.Env):
    """A goal environment whose interrupted episode restarts: it climbs one unit per step."""

    observation_space = gymnasium.spaces.Dict(
        {
            name: gymnasium.spaces.Box(-np.inf, np.inf, (1,))
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory = Memory()
        self.memory.height = self.np_random.uniform()
        return self._observation(), {}

    def step(self, action):
        self.memory.height += 1
        return self._observation(), -1.0, False, False, {}

    def _observation(self):
        height = np.array([self.memory.height], np.float32)
        goal = np.array([99.0], np.float32)
        return {"observation": height, "achieved_goal": height, "desired_goal": goal}

    def compute_reward(self, achieved, desired, info):
        return -(np.abs(achieved - desired) > 0.5).astype(np.float32)[..., 0]


gymnasium.register("Climb-v0", Climb, max_episode_steps=20)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_the_goals_of_a_restarted_episode_are_its_own(num_envs, train, crash, checkpoint, tmp_path):
    options = ("env.name=Climb-v0", "replay=her", f"num_envs={num_envs}", "total_frames=132")
    crash("td3", tmp_path, *options, at=100)
    train("td3", tmp_path, *options)
    state = checkpoint(tmp_path)["parts"]["replay"]
    rows, restart = rows_in(state), 65 if num_envs == 1 else 66  # not a multiple of 20
    buffer = HindsightReplayBuffer(
        storage=LazyTensorStorage(state["storage"]["capacity"]),
        reward_fn=lambda achieved, desired: torch.zeros(len(achieved)),
        trajectory_key=ENVIRONMENT,
    )
    buffer.load_state_dict(state)
    for slot in range(132):
        episode = buffer.episode_index.episode(slot)
        heights = rows["observation"][episode].flatten()
        assert torch.equal(heights.diff().round(), torch.ones(len(episode) - 1))
        assert (episode < restart).all() or (episode >= restart).all()
        assert len(episode) <= 20
