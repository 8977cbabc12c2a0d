"""Command-line options reach the algorithm and have the documented effect."""

from __future__ import annotations

import importlib
from collections import defaultdict

import pytest
import torch

from helpers import brute_force
from helpers.sessions import BareSession
from vmfer_recipes import sac, td3
from vmfer_recipes.config.training import to_config

RECIPES = {"td3": td3, "sac": sac}
# 60 random steps, then 40 steps of learning.
SHORT = ("init_random_frames=60", "total_frames=100", "eval_interval=1000", "log_interval=10")


@pytest.fixture
def make_agent(agent_of, tmp_path):
    """``make_agent(algorithm, *overrides)``: an agent that uses TorchRL's updates."""
    return lambda *words: agent_of(words[0], tmp_path, "fast=false", *words[1:], frames=70)


@pytest.fixture
def order_of_updates(configuration, tmp_path, monkeypatch):
    """``order_of_updates(algorithm, *overrides)``: the updates of each step after the warm-up."""

    def record(algorithm, *overrides):
        recipe = importlib.import_module(f"vmfer_recipes.{algorithm}")
        general = ("fast=false", "init_random_frames=60")  # it calls `step`
        cfg = to_config(configuration(algorithm, tmp_path, *general, *overrides))
        session = BareSession(80)
        session.updates = defaultdict(list)
        agent = recipe.make_agent(cfg)
        for name in ("critic_optimizer", "actor_optimizer", "targets"):
            part = getattr(agent, name)
            setattr(agent, name, Recorded(part, name.split("_")[0], session))
        recipe.train(cfg, session, agent)
        return session.updates

    return record


class Recorded:
    """Records the calls of ``step``."""

    def __init__(self, part, name, session):
        self._part, self._name, self._session = part, name, session

    def __getattr__(self, name):
        return getattr(self._part, name)

    def step(self):
        self._session.updates[self._session.step].append(self._name)
        self._part.step()


def test_td3_updates_actor_and_targets_with_the_policy_delay(order_of_updates):
    """Targets at every ``policy_delay``-th update of the critics, for any UTD ratio."""
    for delay in (2, 3):
        assert order_of_updates("td3", f"policy_delay={delay}") == {
            step: ["critic"] if step % delay else ["critic", "actor", "targets"]
            for step in range(61, 81)
        }
    thrice = order_of_updates("td3", "policy_delay=2", "utd_ratio=3")
    assert list(thrice) == list(range(61, 81))
    # Critic updates 181 to 183 are those of step 61, and 184 to 186 those of step 62.
    assert thrice[61] == ["critic", "critic", "targets", "critic"]
    assert thrice[62] == ["critic", "targets", "critic", "critic", "actor", "targets"]
    every = order_of_updates("td3", "policy_delay=1", "utd_ratio=2")
    assert every[61] == ["critic", "targets", "critic", "actor", "targets"]


def test_fraction_of_an_update_per_step_keeps_the_order_and_the_delay(order_of_updates):
    rare = order_of_updates("td3", "utd_ratio=1/4")
    found = {step: updates for step, updates in rare.items() if updates}
    # Updates 16 to 20: every second one is followed by those of actor and targets.
    both = ["critic", "actor", "targets"]
    assert found == {64: both, 68: ["critic"], 72: both, 76: ["critic"], 80: both}
    rare = order_of_updates("sac", "utd_ratio=0.1")
    found = {step: updates for step, updates in rare.items() if updates}
    assert found == {70: both, 80: both}
    more = order_of_updates("sac", "utd_ratio=1.5")
    assert [updates.count("critic") for step, updates in more.items() if step > 60] == [1, 2] * 10


def test_td3_bc_updates_the_critics_every_step_and_the_actor_every_other(
    order_of_updates, recorded_run
):
    offline = (f"dataset={recorded_run}", "init_random_frames=0")
    assert order_of_updates("td3_bc", *offline) == {
        step: ["critic"] if step % 2 else ["critic", "actor", "targets"] for step in range(1, 81)
    }


def test_sac_updates_targets_after_each_critic_update(order_of_updates):
    assert order_of_updates("sac")[61] == ["critic", "actor", "targets"]
    thrice = order_of_updates("sac", "utd_ratio=3")
    assert thrice[80] == ["critic", "targets"] * 2 + ["critic", "actor", "targets"]


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_five_critics_learn_and_differ(make_agent, algorithm):
    agent, recipe = make_agent(algorithm, "num_critics=5"), RECIPES[algorithm]
    params = agent.loss.qvalue_network_params
    assert params.batch_size == torch.Size([5])
    before = params.data.clone()
    first, second = (recipe.update_critics(BareSession(), agent) for _ in range(2))
    assert not torch.equal(first["index"], second["index"])
    for start, end in zip(
        before.flatten_keys().values(), params.data.flatten_keys().values(), strict=True
    ):
        assert all(not torch.equal(start[i], end[i]) for i in range(5))
    weights = next(value for value in params.data.flatten_keys().values() if value.ndim == 3)
    assert all(not torch.equal(weights[0], weights[i]) for i in range(1, 5))
    # Of five signs the mean is ±1/5, ±3/5 or ±1: InvertedPendulum has one action.
    _, info = agent.loss.actor_loss(agent.actor_batch(second))
    lengths = (5 * info["vmf_resultant_length"]).round(decimals=3)
    assert set(lengths.tolist()) <= {1.0, 3.0, 5.0}


@pytest.mark.parametrize("sampler", ["uniform", "vmf_uncertainty"])
def test_actor_noise_changes_the_actions_at_which_critics_are_evaluated(make_agent, sampler):
    @torch.no_grad()
    def evaluated_at_the_policy(*overrides):
        agent = make_agent("td3", f"sampler={sampler}", *overrides)
        batch = agent.actor_batch(agent.critic_batch())
        with torch.enable_grad():
            value, _ = agent.loss.actor_loss(batch)
        action = brute_force.policy_action(agent.loss, batch)
        at_policy = -brute_force.critic_values(agent.loss, batch, action)[0].mean()
        return torch.allclose(value, at_policy, atol=1e-6)

    assert evaluated_at_the_policy()
    assert not evaluated_at_the_policy("actor_noise=0.2")


def test_the_entropy_gradient_makes_critics_appear_to_agree(train, table, tmp_path):
    # It is the same for all critics, and at the initial temperature of 1 it dominates.
    agreement = {}
    for value in ("false", "true"):
        run = train("sac", tmp_path / value, *SHORT, "env=Hopper-v4", f"entropy_gradient={value}")
        rows = table(run / "train.csv")
        agreement[value] = sum(float(row["resultant_length_mean"]) for row in rows)
    assert agreement["true"] > agreement["false"]


@pytest.mark.parametrize("replay", ["per", "per_rank"])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_prioritized_replay_weights_the_loss_of_the_critics(make_agent, algorithm, replay):
    # The TD targets are the rewards.
    agent = make_agent(algorithm, f"replay={replay}", "gamma=0", "sampler=uniform")
    for _ in range(3):
        RECIPES[algorithm].update_critics(BareSession(), agent)
    batch = agent.critic_batch()
    weight, reward = batch["priority_weight"], batch["next", "reward"].squeeze(-1)
    assert weight.unique().numel() > 1
    error = brute_force.critic_values(agent.loss, batch, batch["action"]) - reward
    expected = (weight * error.square().sum(0)).sum() / weight.sum()
    torch.testing.assert_close(agent.loss.critic_loss(batch)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_one_critic_is_enough_for_a_baseline(algorithm, fast, train, tmp_path):
    """TorchRL turns a list of one critic into parameters that cannot be optimized."""
    train(algorithm, tmp_path, *SHORT, "num_critics=1", "sampler=uniform", f"fast={fast}")
    assert (tmp_path / "finished").exists()
