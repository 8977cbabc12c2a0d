"""Critics at the policy's actions, against one critic and one transition after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import brute_force
from helpers.losses import make_batch, perturb
from torchrl_vmfer import Critics
from torchrl_vmfer.critics import SCORES

MANY = pytest.mark.parametrize("name", ["td3", "sac", "redq", "crossq", "tqc", "td3_bc", "cql"])


@pytest.fixture
def case(request):
    """``case(name)``: a loss with moved target networks, a batch, and the policy's actions."""

    def make(name):
        loss, batch = request.getfixturevalue(name).build(), make_batch(9)
        if name != "crossq":  # it has no target networks
            perturb(loss.target_qvalue_network_params, [0, 1])
        if hasattr(loss.actor_network, "get_dist"):
            with torch.no_grad(), loss.actor_network_params.to_module(loss.actor_network):
                action = loss.actor_network.get_dist(batch.copy()).deterministic_sample
        else:
            action = brute_force.policy_action(loss, batch).detach()
        return loss, batch, action

    return make


def close(found, expected):
    torch.testing.assert_close(
        found.double(), torch.as_tensor(expected).double(), rtol=1e-4, atol=1e-5
    )


@MANY
def test_values_and_gradients_are_those_of_each_critic(name, case):
    loss, batch, action = case(name)
    critics = Critics(loss, batch)
    close(critics.action, action)
    close(critics.values, brute_force.critic_values(loss, batch, action).detach())
    close(critics.gradients, brute_force.action_gradients(loss, batch, action))
    assert not critics.gradients.requires_grad


@MANY
def test_signals_of_values_and_gradients_follow_their_definitions(name, case):
    loss, batch, action = case(name)
    values = brute_force.critic_values(loss, batch, action).detach().double().numpy()
    gradients = brute_force.action_gradients(loss, batch, action).double().numpy()
    expected = {
        "value_gap": np.abs(values[0] - values[1]),
        "on_policy_distance": np.linalg.norm(batch["action"] - action, axis=-1),
        "saturation": np.abs(action.double().numpy()).mean(-1),
        "signal_to_noise": [
            np.linalg.norm(np.mean(rows, 0)) ** 2 / np.mean([row @ row for row in rows])
            for rows in gradients.swapaxes(0, 1)
        ],
    }
    for signal, numbers in expected.items():
        close(SCORES[signal](Critics(loss, batch)), numbers)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_target_agreement_compares_critics_and_targets(name, case):
    loss, batch, action = case(name)
    online = brute_force.action_gradients(loss, batch, action)
    values = brute_force.critic_values(loss, batch, action).detach()
    used = 0 if name == "td3" else values.argmin(0).numpy()
    found = Critics(loss, batch).target_agreement()
    for param, target in zip(
        loss.qvalue_network_params.values(True, True),
        loss.target_qvalue_network_params.values(True, True),
        strict=True,
    ):
        param.data.copy_(target.data)
    four = torch.cat([online, brute_force.action_gradients(loss, batch, action)])
    close(found, brute_force.sampling_factor(four, used))


def test_no_random_numbers_are_drawn(sac):
    loss, batch = sac.build(), make_batch(4)
    before = torch.get_rng_state()
    for name, score in SCORES.items():
        if name != "td_error":  # the target of the loss draws an action
            score(Critics(loss, batch))
    assert torch.equal(torch.get_rng_state(), before)
