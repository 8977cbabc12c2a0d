"""The methods that draw the actor's batch get the right signals, and nothing else changes."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from helpers import brute_force
from helpers.sessions import BareSession
from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    GradientNormSampler,
    InverseTDSampler,
    VMFSampler,
)
from vmfer_recipes import sac, td3
from vmfer_recipes.config.names import choices_of

RECIPES = {"td3": td3, "sac": sac}
# Networks that do not change, and TD targets that are the rewards.
FROZEN = ("critic_lr=0", "actor_lr=0", "gamma=0")


@pytest.fixture
def make_agent(agent_of, tmp_path):
    """``make_agent(algorithm, *overrides)``: an agent with 70 transitions."""
    return lambda algorithm, *overrides: agent_of(algorithm, tmp_path, *overrides, frames=70)


@pytest.fixture
def stored(monkeypatch):
    """``stored(receiver)``: records each slot and value that samplers, or buffers, receive."""

    def record(receiver):
        received = []
        update = receiver.update_priority

        def recording(self, index, priority, **kwargs):
            received.append((index.clone(), priority.clone()))
            return update(self, index, priority, **kwargs)

        monkeypatch.setattr(receiver, "update_priority", recording)
        return received

    return record


def update(algorithm, agent):
    """Updates critics and actor five times."""
    recipe, session = RECIPES[algorithm], BareSession()
    for _ in range(5):
        recipe.update_actor(session, agent, recipe.update_critics(session, agent))


def td_errors(loss, rows):
    values = brute_force.critic_values(loss, rows, rows["action"]).detach()
    return (values - rows["next", "reward"].squeeze(-1)).abs().amax(0)


def gradient_norms(loss, rows):
    action = brute_force.policy_action(loss, rows).detach()
    return brute_force.action_gradients(loss, rows, action)[0].norm(dim=-1)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("algorithm", "choice", "receiver", "signal"),
    [
        ("td3", "sampler=inverse_td", InverseTDSampler, td_errors),
        ("sac", "sampler=inverse_td", InverseTDSampler, td_errors),
        ("td3", "sampler=gradient_norm", GradientNormSampler, gradient_norms),
        ("td3", "replay=per", ActorCriticReplayBuffer, td_errors),
        ("td3", "replay=lap", ActorCriticReplayBuffer, td_errors),
        ("sac", "replay=per", ActorCriticReplayBuffer, td_errors),
        ("sac", "replay=per_rank", ActorCriticReplayBuffer, td_errors),
    ],
)
def test_signals_belong_to_their_transitions(
    algorithm, choice, receiver, signal, fast, make_agent, stored
):
    received = stored(receiver)
    agent = make_agent(algorithm, *FROZEN, choice, f"fast={fast}")
    update(algorithm, agent)
    expected = signal(agent.loss, agent.buffer[:])
    assert len(received) == 5
    for index, values in received:
        torch.testing.assert_close(values, expected[index], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_saturated_actions_are_drawn_by_their_size(algorithm, fast, make_agent, stored):
    received = stored(VMFSampler)
    agent = make_agent(algorithm, *FROZEN, "sampler=saturated", "sampler.power=-3", f"fast={fast}")
    update(algorithm, agent)
    rows = agent.buffer[:]
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        size = agent.policy(rows.select("observation"))["action"].abs().mean(-1).double()
    weights = torch.ones_like(size)
    for index, _ in received:
        weights[index] = torch.exp(-3 * size[index])
    found = agent.buffer.actor_sampler.probabilities()
    torch.testing.assert_close(found, weights / weights.sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("sampler", sorted({*choices_of("sampler")} - {"odpr"}))  # for datasets
def test_weights_of_the_critics_do_not_reach_the_actor(make_agent, sampler):
    agent = make_agent("td3", f"sampler={sampler}", "replay=per")
    critic_batch = agent.critic_batch()
    assert "priority_weight" in critic_batch
    assert "priority_weight" not in agent.actor_batch(critic_batch)


class TestWeighting:
    @pytest.mark.parametrize("fast", ["true", "false"])
    @pytest.mark.parametrize("algorithm", ["td3", "sac"])
    def test_an_update_has_the_expected_gradient_of_resampling(self, algorithm, fast, make_agent):
        overrides = ("sampler=fresh", "weighting=3", f"fast={fast}", "env.name=ShortCheetah-v0")
        agent = make_agent(algorithm, *overrides)
        plain, batch = copy.deepcopy(agent.loss), agent.actor_batch(agent.critic_batch())
        fixed = dataclasses.replace(agent, sample_actor=lambda: batch)
        torch.manual_seed(5)
        RECIPES[algorithm].update_actor(BareSession(), fixed, batch)
        state = agent.actor_optimizer.state  # Adam's average of the gradient
        found = [state[param]["exp_avg"] / 0.1 for param in state]

        action = brute_force.policy_action(plain, batch, seed=5).detach()
        directions = brute_force.action_gradients(plain, batch, action)
        used = 0
        if algorithm == "sac":
            used = brute_force.critic_values(plain, batch, action).detach().argmin(0).numpy()
        weights = brute_force.sampling_factor(directions, used) ** 3
        assert weights.std() > 0.01
        plain.reduction, plain.weighting = "none", 0.0
        torch.manual_seed(5)
        losses, info = plain.actor_loss(batch.select("observation"))
        (losses * (weights / weights.sum()).float()).sum().backward()
        expected = [param.grad for param in plain.actor_network_params.parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
        if algorithm == "sac":  # its temperature is learned on the same distribution
            mean = np.average(info["log_prob"].numpy(), weights=weights.numpy())
            gradient = agent.alpha_optimizer.state[agent.loss.log_alpha]["exp_avg"].item() / 0.1
            assert gradient == pytest.approx(-mean - float(plain.target_entropy), rel=1e-3)


class TestOnPolicy:
    @pytest.mark.parametrize("algorithm", ["td3", "sac"])
    def test_batch_is_the_candidate_closest_to_the_policy(self, algorithm, make_agent, monkeypatch):
        agent = make_agent(algorithm, "sampler=on_policy", "sampler.num_batches=4")
        candidates = []
        draw = agent.buffer.sample_actor

        def recording(*args, **kwargs):
            candidates.append(draw(*args, **kwargs))
            return candidates[-1]

        monkeypatch.setattr(agent.buffer, "sample_actor", recording)
        batch = agent.actor_batch(agent.critic_batch())
        (drawn,) = candidates
        assert len(drawn) == 4 * 32
        with torch.no_grad(), agent.loss.actor_network_params.to_module(agent.loss.actor_network):
            seen = agent.loss.actor_network(drawn.select("observation"))
        action = seen["action"] if algorithm == "td3" else seen["loc"].tanh()
        distances = (action - drawn["action"]).square().sum(-1).numpy()
        closest = min(np.split(np.arange(128), 4), key=lambda rows: distances[rows].mean())
        assert torch.equal(batch["index"], drawn["index"][torch.from_numpy(closest)])
        assert set(batch.keys()) == {"observation", "index"}


class TestLAP:
    @pytest.mark.parametrize("algorithm", ["td3", "sac"])
    def test_critics_have_the_huber_loss_without_weights(self, algorithm, make_agent):
        agent = make_agent(algorithm, "replay=lap", "gamma=0")
        batch = agent.critic_batch()
        assert "priority_weight" not in batch
        batch["next", "reward"] = torch.linspace(-3, 3, 32).unsqueeze(-1)  # errors around 1
        values = brute_force.critic_values(agent.loss, batch, batch["action"])
        error = values - batch["next", "reward"].squeeze(-1)
        assert 0 < (error.abs() < 1).float().mean() < 1
        expected = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="sum")
        found = agent.loss.critic_loss(batch)[0]
        torch.testing.assert_close(found, expected / len(batch), rtol=1e-4, atol=1e-5)
