"""Batches from a dataset: a share of each one, or by the returns of its episodes."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.offline.datasets import episode_returns
from vmfer_recipes.report.runs import read_runs

FRAMES = 30


@pytest.fixture
def make_agent(agent_of, recorded_run, tmp_path):
    """``make_agent(*overrides)``: an agent with a dataset of 100 transitions and ``FRAMES`` own."""
    words = (f"dataset={recorded_run}", "init_random_frames=10")
    return lambda *more: agent_of("sac", tmp_path, *words, *more, frames=FRAMES)


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize("share", [0.25, 0.5, 1])
def test_a_share_of_critic_and_actor_batches_is_uniform_in_the_dataset(make_agent, fast, share):
    agent = make_agent(f"share={share}", "sampler=fresh", "batch_size=4000", f"fast={fast}")
    for batch in (agent.critic_batch(), agent.actor_batch(agent.critic_batch())):
        counts = torch.bincount(batch["index"], minlength=100 + FRAMES)
        assert len(counts) == 100 + FRAMES
        assert counts[:100].sum() == 4000 * share
    drawn = torch.cat([agent.critic_batch()["index"] for _ in range(500)])
    found = torch.bincount(drawn, minlength=100 + FRAMES) / len(drawn)
    expected = torch.cat([torch.full((100,), share / 100), torch.full((30,), (1 - share) / 30)])
    torch.testing.assert_close(found, expected, rtol=0.08, atol=1e-9)


def test_the_dataset_is_that_of_the_run_and_is_kept(make_agent, checkpoint, recorded_run):
    agent, rows = make_agent(), checkpoint(recorded_run)["parts"]["replay"]["storage"]["rows"]
    actions = torch.cat([piece["tensors"]["action"] for piece in rows])
    assert torch.equal(agent.buffer.storage[:100]["action"], actions)
    assert len(agent.buffer) == 100 + FRAMES


@pytest.mark.parametrize("sampler", ["uniform", "fresh", "vmf_rank"])
def test_a_run_with_a_dataset_resumes_exactly(
    sampler, assert_crashed_run_resumes_exactly, train, tmp_path
):
    options = ("env.name=ShortCheetah-v0", "init_random_frames=30", "total_frames=60")
    dataset = train("td3", tmp_path / "dataset", *options)
    assert_crashed_run_resumes_exactly("sac", f"dataset={dataset}", f"sampler={sampler}")


def test_a_buffer_that_would_lose_the_dataset_is_refused(make_agent):
    with pytest.raises(UserError, match=r"has 100 transitions.*adds 261.*replay.buffer_size=361"):
        make_agent("replay.buffer_size=360")


def test_returns_are_those_of_episodes_and_of_interrupted_pieces():
    now = torch.tensor([[0.0], [1], [2], [7], [8], [3], [4]])
    after = torch.tensor([[1.0], [2], [5], [8], [9], [4], [6]])  # 2 -> 5 ends, 8 -> 9 breaks off
    done = torch.tensor([[0], [0], [1], [0], [0], [0], [1]]).bool()
    reward = torch.tensor([[1.0], [2], [3], [10], [20], [5], [6]])
    following = {"observation": after, "reward": reward, "done": done}
    found = episode_returns(TensorDict({"observation": now, "next": following}, [7]))
    assert found.tolist() == [6, 6, 6, 30, 30, 11, 11]


@pytest.mark.parametrize("fast", ["true", "false"])
def test_odpr_draws_the_actor_batch_by_return_and_the_critics_uniformly(
    fast, agent_of, recorded_run, tmp_path
):
    words = (f"dataset={recorded_run}", "init_random_frames=0", "batch_size=2000")
    agent = agent_of("td3_bc", tmp_path, *words, "sampler=odpr", f"fast={fast}")
    rows, total, returns = agent.buffer.storage[:], 0.0, []
    start = 0
    for slot in range(100):  # of InvertedPendulum, whose reward is 1
        total += float(rows["next", "reward"][slot])
        if rows["next", "done"][slot] or slot == 99:
            returns += [total] * (slot + 1 - start)
            start, total = slot + 1, 0.0
    returns = torch.tensor(returns)
    weight = (returns - returns.min()) / (returns.max() - returns.min()) + 0.1
    critic = torch.cat([agent.critic_batch()["index"] for _ in range(100)])
    actor = torch.cat([agent.actor_batch(agent.critic_batch())["index"] for _ in range(100)])
    for drawn, expected in ((critic, torch.ones(100)), (actor, weight)):
        found = torch.bincount(drawn, minlength=100) / len(drawn)
        torch.testing.assert_close(found, expected / expected.sum(), rtol=0.3, atol=1e-9)


def test_odpr_resumes_exactly(recorded_run, assert_resumes_exactly):
    words = (f"dataset={recorded_run}", "init_random_frames=0", "sampler=odpr")
    assert_resumes_exactly("td3_bc", *words)


def test_a_report_compares_runs_with_and_without_a_dataset(train, recorded_run, tmp_path):
    for name, words in {"td3": (), "sac": (), "sac_data": (f"dataset={recorded_run}",)}.items():
        train(name[:3], tmp_path / name, "total_frames=70", *words)
    runs, _ = read_runs(tmp_path)
    assert len({run.task for run in runs}) == 1
    assert len({run.method for run in runs}) == 3
