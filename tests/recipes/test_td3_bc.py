"""TD3+BC learns from a dataset, with every sampler, exact resume and one-line errors."""

from __future__ import annotations

import copy
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from helpers.minari_data import record
from helpers.sessions import BareSession
from torchrl_vmfer import load_policy
from vmfer_recipes import evaluate, td3_bc
from vmfer_recipes.config.algorithms import TD3BCConfig
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import to_config

PENDULUM = "InvertedPendulum-v4"
# Checkpoints at 8 and 16; rows of train.csv and eval.csv between them and the crash.
OFFLINE = (
    "init_random_frames=0",
    "total_frames=22",
    "checkpoint_interval=8",
    "eval_interval=18",
    "log_interval=5",
)
# Cases that differ little from the others.
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def learn(train, recorded_run):
    """``learn(run_dir, *overrides)``: a small offline run on the buffer of a run."""

    def run(run_dir, *overrides):
        return train("td3_bc", run_dir, f"dataset={recorded_run}", *OFFLINE, *overrides)

    return run


@pytest.fixture(scope="module")
def finished_run(learn, tmp_path_factory):
    return learn(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def compose(configuration, recorded_run, tmp_path):
    """``compose(*overrides)``: the checked configuration of such a run."""

    def composed(*overrides):
        given = (f"dataset={recorded_run}", *OFFLINE, *overrides)
        return to_config(configuration("td3_bc", tmp_path / "run", *given))

    return composed


@pytest.fixture
def recorded(recorded_run, checkpoint):
    """The rows of the dataset, as the checkpoint of the run holds them."""
    (rows,) = checkpoint(recorded_run)["parts"]["replay"]["storage"]["rows"]
    return rows


def trained(cfg, count, prepare=lambda agent: None):
    """An agent after some steps, and the averages of its metrics."""
    session = BareSession(count)
    torch.manual_seed(0)
    agent = td3_bc.make_agent(cfg)
    prepare(agent)
    td3_bc.train(cfg, session, agent)
    return agent, session.metrics.means()


# --- Training.


@pytest.mark.parametrize("replay", ["uniform", slow("per")])
@pytest.mark.parametrize(
    "sampler", ["uniform", "fresh", "vmf_uncertainty", "vmf_rank", "vmf_pool", "vmf_direct"]
)
def test_every_sampler_trains_on_the_buffer_of_a_run(compose, recorded, sampler, replay):
    options = {"vmf_direct": ["sampler.num_candidates=64"], "vmf_pool": ["sampler.pool_size=64"]}
    cfg = compose(f"sampler={sampler}", f"replay={replay}", *options.get(sampler, []))
    agent, metrics = trained(cfg, 10)
    names = ("critic_loss", "actor_loss", "bc_loss", "factor_mean", "resultant_length_mean")
    assert all(np.isfinite(metrics[name]) for name in names)
    assert len(agent.buffer) == 100  # nothing was collected
    assert torch.equal(agent.buffer[:]["observation"], recorded["tensors"]["observation"])
    if sampler in ("vmf_uncertainty", "vmf_rank"):  # factors were stored
        assert agent.buffer.actor_sampler.probabilities().unique().numel() > 1


def behavior_cloning(network, batches, learning_rate):
    """Plain behavior cloning, independent of the recipe."""
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    for observation, action in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(observation), action).backward()
        optimizer.step()
    return network


@pytest.mark.parametrize(
    ("sampler", "fast"),
    [("vmf_rank", True), ("uniform", False)],
)
def test_without_the_critics_it_is_behavior_cloning(compose, recorded, sampler, fast):
    networks, indices = [], []

    def watch(agent):
        networks.append(copy.deepcopy(agent.policy.actor.module))
        draw = agent.actor_batch

        def actor_batch(critic_batch, **options):
            batch = draw(critic_batch, **options)
            indices.append(batch["index"])
            return batch

        agent.actor_batch = actor_batch

    agent, _ = trained(compose("alpha=0", f"sampler={sampler}", f"fast={fast}"), 20, watch)
    raw, actions = recorded["tensors"]["observation"].numpy(), recorded["tensors"]["action"]
    observations = torch.from_numpy((raw - raw.mean(0)) / (raw.std(0) + 1e-3))
    batches = [(observations[index], actions[index]) for index in indices]
    assert len(batches) == 10
    before = copy.deepcopy(networks[0].state_dict())
    cloned = behavior_cloning(networks[0], batches, 3e-4).state_dict()
    for name, weight in agent.policy.actor.module.state_dict().items():
        torch.testing.assert_close(weight, cloned[name], rtol=0, atol=2e-5)
        assert (weight - before[name]).abs().max() > 1e-3


def test_the_policy_carries_the_statistics_of_the_dataset(finished_run, recorded, compose):
    raw = recorded["tensors"]["observation"].double().numpy()
    normalization = load_policy(finished_run).normalization
    np.testing.assert_allclose(normalization.mean, raw.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(normalization.deviation, raw.std(0) + 1e-3, rtol=1e-5)
    assert normalization.clip == float("inf")
    agent, _ = trained(compose("normalize=false"), 1)
    assert agent.observations.normalization() is None


def test_a_minari_dataset_gives_the_normalized_score(tmp_path, train, capsys, monkeypatch, table):
    pytest.importorskip("minari")
    scores = {"ref_min_score": 2.0, "ref_max_score": 12.0}
    data = record(tmp_path, PENDULUM, "test/random-v0", 6, **scores)
    dataset = f"dataset={data.folder}"
    run_dir = train("td3_bc", tmp_path / "run", dataset, *OFFLINE, "num_eval_episodes=3")
    last = table(run_dir / "eval.csv")[-1]
    score, deviation = (float(last["return_mean"]) - 2) * 10, float(last["return_std"]) * 10
    line = (
        f"Normalized score {score:.1f} ± {deviation:.1f} (random return 2.0 = 0, expert return "
        "12.0 = 100; reference: the dataset)."
    )
    assert line in capsys.readouterr().out
    assert list(last) == ["step", "return_mean", "return_std", "episode_length", "success_rate"]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(run_dir), "episodes=1"])
    evaluate.main()
    assert "Normalized score " in capsys.readouterr().out


# --- Resume.


@pytest.mark.parametrize("overrides", [(), slow(("sampler=vmf_rank", "replay=per"))], ids=" ".join)
def test_a_crashed_run_resumes_exactly_even_if_its_source_has_changed(
    learn, finished_run, train, crash, recorded_run, overrides, tmp_path, assert_same_run
):
    straight = learn(tmp_path / "straight", *overrides) if overrides else finished_run
    source = shutil.copytree(recorded_run, tmp_path / "source")
    arguments = (tmp_path / "crashed", f"dataset={source}", *OFFLINE, *overrides)
    crash("td3_bc", *arguments, at=21)
    (file,) = (source / "checkpoint" / "segments").iterdir()
    rows = torch.load(file, weights_only=True)
    rows["tensors"]["observation"] += 1
    torch.save(rows, file)
    assert_same_run(straight, train("td3_bc", *arguments))


# --- Errors.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=null"], "td3_bc learns from a dataset: set dataset= to a run directory"),
        (["init_random_frames=60"], "init_random_frames=60 has no effect on td3_bc"),
        (["collector=processes"], "collector=processes has no effect on td3_bc"),
        (["env.normalize_observations=true"], "which has normalize= instead"),
        (["replay=her"], "replay=her requires whole episodes"),
        (["env=Hopper-v4"], "InvertedPendulum-v4 there, Hopper-v4 here"),
        (["dataset=no/such/run"], "dataset=no/such/run is not a dataset: give a run directory"),
        (["replay.buffer_size=99"], "100 transitions, more than .*use replay.buffer_size=100"),
    ],
)
def test_unsuitable_keys_and_datasets_are_refused_before_anything_is_written(
    learn, tmp_path, overrides, message
):
    with pytest.raises(UserError, match=message):
        learn(tmp_path / "run", *overrides)
    assert not (tmp_path / "run").exists()


def test_the_published_settings_are_the_defaults():
    published = {  # https://github.com/sfujim/TD3_BC
        "alpha": 2.5,
        "normalize": True,
        "target_noise": 0.2,
        "target_noise_clip": 0.5,
        "policy_delay": 2,
        "batch_size": 256,
        "critic_lr": 3e-4,
        "actor_lr": 3e-4,
        "hidden": [256, 256],
        "gamma": 0.99,
        "tau": 0.005,
        "total_frames": 1_000_000,
        "eval_interval": 5000,
        "num_eval_episodes": 10,
    }
    defaults = TD3BCConfig()
    assert {name: getattr(defaults, name) for name in published} == published
