"""Several environments in one process: frames, episodes, updates and resuming."""

from __future__ import annotations

import itertools
import time

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers.saved_rows import rows_in
from torchrl_vmfer import load_policy
from vmfer_recipes.collection.worker import Worker
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.training import to_config
from vmfer_recipes.environments.make import make_environment


class Counting(gym.Env):
    """Observes the seed of its episode and the step number; terminates after a fixed length.

    Every instance has a different length, so that episodes never coincide.
    """

    observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    made = itertools.count()

    def __init__(self, render_mode=None):
        self.number = next(Counting.made)
        self.episode = self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        is_over = self.count == 7 + self.number % 4 and self.number % 2 == 0
        return self._observation(), float(self.count), is_over, False, {}

    def _observation(self):
        return np.array([self.number, self.episode, self.count], np.float32)


gym.register("Counting-v0", Counting, max_episode_steps=9)
SMALL = ("num_envs=4", "env.name=Counting-v0", "eval_interval=1000", "checkpoint_interval=50")


@pytest.mark.parametrize("fast", ["true", "false"])
def test_transitions_of_each_environment_match_its_episodes_and_updates_are_counted_by_frame(
    fast, train, checkpoint, table, tmp_path
):
    first = next(Counting.made) + 2  # the next instance is used for evaluation
    train(
        "td3", tmp_path, *SMALL, f"fast={fast}", "total_frames=101", "init_random_frames=49",
        "checkpoint_interval=101", "log_interval=102", "utd_ratio=2",
    )  # fmt: skip
    state = checkpoint(tmp_path)
    assert state["step"] == 101
    optimizer = state["parts"]["critic_optimizer"]["state"].values()
    assert {int(each["step"]) for each in optimizer} == {2 * (101 - 49)}
    rows = rows_in(state["parts"]["replay"])
    now, after, following = rows["observation"], rows["next"]["observation"], rows["next"]
    assert len(now) == 104  # whole rounds
    assert torch.equal(now[:, 0], torch.arange(first, first + 4).float().repeat(26))
    assert torch.equal(after[:, :2], now[:, :2])  # the last observation, not that of the reset
    assert torch.equal(after[:, 2], now[:, 2] + 1)
    assert torch.equal(following["reward"][:, 0], after[:, 2])
    ends = []
    for number in range(first, first + 4):
        steps = after[now[:, 0] == number, 2]
        done, terminated = (
            following[key][now[:, 0] == number, 0] for key in ("done", "terminated")
        )
        terminates = number % 2 == 0
        length = min(7 + number % 4, 9) if terminates else 9
        assert steps.tolist() == [1 + frame % length for frame in range(26)]
        assert torch.equal(done, steps == length)
        # Both a time limit and a termination at step 9.
        assert torch.equal(terminated, done if terminates and 7 + number % 4 <= 9 else done & False)
        ends += [length] * int(done.sum())
    (row,) = table(tmp_path / "train.csv")
    assert float(row["episode_length"]) == pytest.approx(np.mean(ends))
    returns = [length * (length + 1) / 2 for length in ends]
    assert float(row["episode_return"]) == pytest.approx(np.mean(returns))
    assert int(row["num_episodes"]) == len(ends)


def test_initial_random_frames_are_counted_over_all_environments(train, checkpoint, tmp_path):
    # Without noise, the untrained policy gives one action per observation.
    train(
        "td3", tmp_path, *SMALL, "exploration_noise=0", "total_frames=12", "init_random_frames=6",
        "actor_lr=0", "checkpoint_interval=11",
    )  # fmt: skip
    state = checkpoint(tmp_path)["parts"]
    rows = rows_in(state["replay"])
    policy = load_policy(tmp_path)
    actions = policy.unit_action(rows["observation"])
    is_policy = ((actions - rows["action"]).abs() < 1e-5).all(-1)
    assert is_policy.tolist() == [False] * 6 + [True] * 6


INTERRUPTED = (
    "env.name=ShortCheetah-v0",
    "num_envs=3",
    "total_frames=191",
    "init_random_frames=31",
    "checkpoint_interval=80",
    "eval_interval=70",
    "log_interval=40",
)


@pytest.mark.parametrize(
    "overrides",
    [
        ("td3", "sampler=vmf_rank"),
        ("td3", "sampler=vmf_rank", "utd_ratio=1/7"),
        pytest.param(("sac", "sampler=uniform", "fast=false"), marks=pytest.mark.slow),
        pytest.param(
            ("td3", "sampler=vmf_uncertainty", "env.normalize_observations=true"),
            marks=pytest.mark.slow,
        ),
    ],
    ids="-".join,
)
def test_run_that_crashed_within_a_round_ends_like_an_uninterrupted_one(
    overrides, assert_resumes_exactly, table
):
    algorithm, *options = overrides
    # A round has three frames: the checkpoint of step 160 is within one.
    straight = assert_resumes_exactly(algorithm, *INTERRUPTED, *options, at=185, saved=160)
    lengths = [row["episode_length"] for row in table(straight / "train.csv")]
    assert lengths == ["", "", "", "50.0", ""]


def test_environments_start_in_different_states(train, checkpoint, tmp_path):
    for seed in (0, 1):
        train(
            "td3", tmp_path / str(seed), f"seed={seed}", "num_envs=3", "total_frames=62",
            "checkpoint_interval=61", "env.name=ShortCheetah-v0",
        )  # fmt: skip
    starts = torch.cat(
        [
            rows_in(checkpoint(tmp_path / seed)["parts"]["replay"])["observation"][:3]
            for seed in ("0", "1")
        ]
    )
    assert len(starts.unique(dim=0)) == 6


@pytest.mark.parametrize("fast", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_hindsight_does_not_mix_the_episodes_of_several_environments(
    fast, assert_resumes_exactly, checkpoint
):
    options = (
        "replay=her", "env=FetchReach-v4", "num_envs=3", f"fast={fast}", "total_frames=191",
        "init_random_frames=150", "checkpoint_interval=170", "eval_interval=1000",
        "log_interval=20", "replay.buffer_size=160",
    )  # fmt: skip
    straight = assert_resumes_exactly("td3", *options, at=185, saved=170)
    rows = rows_in(checkpoint(straight)["parts"]["replay"])
    assert rows["environment"].unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("fast", ["true", "false"])
def test_training_returns_of_one_environment_match_its_rewards(
    fast, train, checkpoint, table, tmp_path
):
    train(
        "td3", tmp_path, f"fast={fast}", "total_frames=211", "checkpoint_interval=210",
        "log_interval=70",
    )  # fmt: skip
    following = rows_in(checkpoint(tmp_path)["parts"]["replay"])["next"]
    # InvertedPendulum falls within a few steps, long before its time limit.
    assert torch.equal(following["terminated"], following["done"])
    ends = [0, *(following["done"][:, 0].nonzero()[:, 0] + 1).tolist()]
    episodes = [
        (end, end - start, following["reward"][start:end].sum().item())
        for start, end in itertools.pairwise(ends)
    ]
    rows = table(tmp_path / "train.csv")
    assert [row["step"] for row in rows] == ["70", "140", "210", "211"]
    for row in rows[:3]:
        step = int(row["step"])
        ended = [each[1:] for each in episodes if step - 70 < each[0] <= step]
        assert float(row["episode_length"]) == pytest.approx(np.mean([each[0] for each in ended]))
        assert float(row["episode_return"]) == pytest.approx(np.mean([each[1] for each in ended]))


@pytest.mark.parametrize(
    "task", [("env.name=ShortCheetah-v0",), ("env=FetchReach-v4", "replay=her")]
)
def test_environments_that_wait_are_stepped_at_the_same_time_with_the_same_results(
    task, train, checkpoint, assert_equal, tmp_path
):
    options = (*task, "num_envs=6", "checkpoint_interval=261")
    parts = []
    for number, extra in enumerate(((), ("env.blocking=true",))):
        parts.append(checkpoint(train("td3", tmp_path / str(number), *options, *extra))["parts"])
    assert_equal(*parts)


def test_worker_waits_once_for_all_environments_that_wait(configuration, tmp_path):
    class Waiting(Counting):
        def step(self, action):
            time.sleep(0.05)
            return super().step(action)

    gym.register("Waiting-v0", Waiting)
    envs = [make_environment(EnvConfig("Waiting-v0"), seed) for seed in range(6)]
    cfg = to_config(configuration("td3", tmp_path, "env.blocking=true", "init_random_frames=24"))
    worker = Worker(cfg, None, envs)
    start = time.monotonic()
    transitions = worker.collect(rounds=4, first=1)
    assert time.monotonic() - start < 0.7  # 1.2 s, one after the other
    assert (
        transitions["next", "observation"][:, 2].tolist() == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6
    )
