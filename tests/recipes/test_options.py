"""Command-line options reach the algorithm and have the documented effect."""

from __future__ import annotations

import importlib
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from helpers import brute_force
from helpers.sessions import BareSession
from torchrl_vmfer import ActorCriticReplayBuffer, VMFSACLoss, VMFTD3Loss
from vmfer_recipes.agent import agent as agent_module
from vmfer_recipes.config.training import to_config

CLASSES = {"td3": (VMFTD3Loss, "value_loss"), "sac": (VMFSACLoss, "qvalue_v2_loss")}
# 60 random steps, then 40 steps of learning.
SHORT = ("init_random_frames=60", "total_frames=100", "eval_interval=1000", "log_interval=10")


@pytest.fixture
def watch(train, tmp_path, monkeypatch):
    """Trains and records all calls between recipe, loss and buffer."""

    def start(algorithm, *overrides, before_critic_loss=lambda loss, batch: None):
        seen = SimpleNamespace(critic=[], actor=[], priorities=[], buffer=None, loss=None)
        loss_class, name = CLASSES[algorithm]
        critic_loss, actor_loss = getattr(loss_class, name), loss_class.actor_loss
        update_priority = ActorCriticReplayBuffer.update_priority

        def spy_critic(self, batch):
            note = before_critic_loss(self, batch)
            value, info = critic_loss(self, batch)
            seen.loss = self
            seen.critic.append((batch, value.detach(), info, note))
            return value, info

        def spy_actor(self, batch):
            before = self.actor_network_params.data.clone()
            critics = self.qvalue_network_params.data.clone()
            value, info = actor_loss(self, batch)
            seen.actor.append((batch, value.detach(), info, before, critics))
            return value, info

        def spy_priority(self, index, priority, *generation):
            seen.buffer = self
            seen.priorities.append((index, priority))
            return update_priority(self, index, priority, *generation)

        with monkeypatch.context() as patch:
            patch.setattr(loss_class, name, spy_critic)
            patch.setattr(loss_class, "actor_loss", spy_actor)
            patch.setattr(agent_module, "measure", lambda *_: {})  # calls the loss, too
            patch.setattr(ActorCriticReplayBuffer, "update_priority", spy_priority)
            run = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            train(algorithm, run, *SHORT, "fast=false", *overrides)  # which calls the loss
        return seen

    return start


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
def test_five_critics_learn_and_differ(watch, algorithm):
    seen = watch(algorithm, "num_critics=5", "utd_ratio=2")
    indices = [batch["index"] for batch, *_ in seen.critic]
    assert not torch.equal(indices[0], indices[1])  # each update of a step has its batch
    params = seen.loss.qvalue_network_params
    assert params.batch_size == torch.Size([5])
    first = seen.actor[0][4]
    for start, end in zip(
        first.flatten_keys().values(), params.data.flatten_keys().values(), strict=True
    ):
        assert all(not torch.equal(start[i], end[i]) for i in range(5))
    weights = next(value for value in params.data.flatten_keys().values() if value.ndim == 3)
    assert all(not torch.equal(weights[0], weights[i]) for i in range(1, 5))
    # Of five signs the mean is ±1/5, ±3/5 or ±1: InvertedPendulum has one action.
    lengths = torch.cat([info["vmf_resultant_length"] for _, _, info, *_ in seen.actor])
    assert set((5 * lengths).round(decimals=3).tolist()) <= {1.0, 3.0, 5.0}


@pytest.mark.parametrize("sampler", ["uniform", "vmf_uncertainty"])
def test_actor_noise_changes_the_actions_at_which_critics_are_evaluated(watch, sampler):
    @torch.no_grad()
    def evaluated_at_the_policy(seen):
        batch, value, _, actor, critics = seen.actor[-1]
        action = brute_force.policy_action(seen.loss, batch, params=actor)
        at_policy = -brute_force.critic_values(seen.loss, batch, action, params=critics)[0].mean()
        return torch.allclose(value, at_policy, atol=1e-6)

    assert evaluated_at_the_policy(watch("td3", f"sampler={sampler}"))
    noisy = watch("td3", f"sampler={sampler}", "actor_noise=0.2")
    assert noisy.loss.actor_noise == 0.2
    assert not evaluated_at_the_policy(noisy)


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
def test_prioritized_replay(watch, monkeypatch, algorithm, replay):
    targets = []
    compute_target = VMFSACLoss._compute_target_v2

    def remember(self, batch):
        targets.append(compute_target(self, batch))
        return targets[-1]

    monkeypatch.setattr(VMFSACLoss, "_compute_target_v2", remember)

    @torch.no_grad()
    def predictions(loss, batch):
        return brute_force.critic_values(loss, batch, batch["action"])

    options = (f"replay={replay}", "sampler=uniform")
    seen = watch(algorithm, *options, before_critic_loss=predictions)
    if algorithm == "td3":
        targets = [info["target_value"] for _, _, info, _ in seen.critic]
    assert len(seen.priorities) == len(seen.critic) == 40
    for (batch, value, _, predicted), target, (index, priority) in zip(
        seen.critic, targets, seen.priorities, strict=True
    ):
        # Priorities are |TD error|, the largest over the critics, for both algorithms.
        error = (predicted - target).abs()
        torch.testing.assert_close(index, batch["index"])
        torch.testing.assert_close(priority.flatten(), error.amax(0), rtol=1e-4, atol=1e-5)
        # The critics' loss is importance-weighted.
        weight = batch["priority_weight"]
        weighted = (weight * error.square().sum(0)).sum() / weight.sum()
        torch.testing.assert_close(value, weighted, rtol=1e-4, atol=1e-5)
    assert seen.critic[-1][0]["priority_weight"].unique().numel() > 1

    # The buffer uses them: the row of the last batch with the largest error is now the most likely.
    index, priority = seen.priorities[-1]
    sampler = seen.buffer.critic_sampler
    chance = (
        sampler.probabilities()[index]
        if replay == "per_rank"
        else torch.as_tensor(sampler._sum_tree[index])
    )
    assert chance.unique().numel() > 1
    assert chance.argmax() in (chance == chance[priority.argmax()]).nonzero()

    # The actor shares the batch but not the weights.
    for batch, *_ in seen.actor:
        # TorchRL's SAC writes the policy's parameters into the batch.
        assert set(batch.keys()) - {"loc", "scale"} == {"observation", "index"}


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_one_critic_is_enough_for_a_baseline(algorithm, fast, train, tmp_path):
    """TorchRL turns a list of one critic into parameters that cannot be optimized."""
    train(algorithm, tmp_path, *SHORT, "num_critics=1", "sampler=uniform", f"fast={fast}")
    assert (tmp_path / "finished").exists()
