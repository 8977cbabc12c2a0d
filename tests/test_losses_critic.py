"""The TD targets of the critics, and critics beyond those of the target, by brute force."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torchrl.modules import BatchRenorm1d

from helpers import brute_force
from helpers.losses import (
    SEED,
    NormalizedNetwork,
    assert_same,
    gradients,
    make_batch,
    perturb,
    seeded,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*with reduction='none'")


def squared_errors(algorithm, loss, batch, targets):
    """Computes (Q_i - y)² ``[N, B]`` with y from the first target critics."""
    following = batch["next"].select("observation")
    with torch.no_grad():
        if algorithm.name == "td3":
            torch.manual_seed(SEED)
            noise = (torch.randn_like(batch["action"]) * 0.2).clamp(-0.5, 0.5)
            target_actor = loss.target_actor_network_params
            action = brute_force.policy_action(loss, following, params=target_actor)
            action, bonus = (action + noise).clamp(-1, 1), 0
        else:
            action = brute_force.policy_action(loss, following, seed=SEED)
            with loss.actor_network_params.to_module(loss.actor_network):
                log_prob = loss.actor_network.get_dist(following.copy()).log_prob(action)
            bonus = -loss.log_alpha.exp() * log_prob
        # CrossQ has no target networks.
        params = getattr(loss, "target_qvalue_network_params", loss.qvalue_network_params)
        values = brute_force.critic_values(loss, following, action, params[:targets])
        continues = 1 - batch["next", "terminated"].squeeze(-1).float()
        reward = batch["next", "reward"].squeeze(-1)
        target = reward + 0.9 * continues * (values.min(0).values + bonus)
    return (brute_force.critic_values(loss, batch, batch["action"]) - target).square()


@pytest.mark.parametrize("targets", [1, 2, 3])
@pytest.mark.parametrize("name", ["td3", "sac", "crossq"])
def test_the_target_is_the_minimum_over_the_first_critics(name, request, targets):
    algorithm, batch = request.getfixturevalue(name), make_batch(40)
    options = {"num_qvalue_nets": 4, "num_target_critics": targets, "loss_function": "l2"}
    loss = algorithm.build(**options)
    if name != "crossq":
        perturb(loss.target_qvalue_network_params, slice(None))
    errors = squared_errors(algorithm, loss, batch, targets)
    expected = errors.sum(0).mean()
    expected.backward()
    reference = gradients(loss)
    value, _ = seeded(algorithm.critic_loss, loss, batch.clone())
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients(loss), reference, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["td3", "sac", "td3_bc", "cql"])
def test_extra_critics_do_not_change_the_target(name, request):
    algorithm = request.getfixturevalue(name)
    targets = 1 if name == "cql" else 2  # the default of the others
    options = {"num_target_critics": 1} if name == "cql" else {"num_qvalue_nets": 5}
    loss = dataclasses.replace(algorithm, own_defaults={}).build(**options)
    before, _ = seeded(algorithm.critic_loss, loss, make_batch(20))
    perturb(loss.target_qvalue_network_params, slice(targets, None))
    assert torch.equal(seeded(algorithm.critic_loss, loss, make_batch(20))[0], before)
    perturb(loss.target_qvalue_network_params, slice(targets - 1, targets))
    moved, _ = seeded(algorithm.critic_loss, loss, make_batch(20))
    assert not torch.isclose(moved, before)


def test_extra_critics_of_crossq_do_not_change_the_gradients_of_the_others(crossq):
    loss = crossq.build(num_qvalue_nets=4, num_target_critics=2)

    def rows():
        seeded(loss.qvalue_loss, make_batch(12))[0].backward()
        found = gradients(loss)
        return torch.cat([g.flatten(1) for key, g in found.items() if "qvalue" in key], 1)

    before = rows()
    perturb(loss.qvalue_network_params, [3])
    after = rows()
    assert torch.equal(after[:3], before[:3])
    assert not torch.isclose(after[3], before[3]).all()
    perturb(loss.qvalue_network_params, [1])
    assert not torch.isclose(rows()[0], before[0]).all()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, BatchRenorm1d])
def test_normalization_layers_of_crossq_are_updated_by_the_critic_loss_only(crossq, layer):
    def statistics(loss):
        state = loss.state_dict().items()
        return {key: value.clone() for key, value in state if "num_" in key or "running" in key}

    stock, vmf = (
        crossq.build(
            loss_class,
            critic=crossq.critic(network=seeded(NormalizedNetwork, layer)),
            num_qvalue_nets=4,
        )
        for loss_class in (crossq.stock_class, crossq.vmf_class)
    )
    before = statistics(vmf)
    for seed in (1, 2):
        for loss in (stock, vmf):
            seeded(loss.qvalue_loss, make_batch(12, seed=seed))
    expected, found = statistics(stock), statistics(vmf)
    assert len(expected) == 3
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert not torch.equal(found[name], before[name]), name

    batch = make_batch(12)
    value, metadata = seeded(vmf.actor_loss, batch.clone())
    assert_same(crossq, value, seeded(stock.actor_loss, batch.clone())[0])
    for name, statistic in statistics(vmf).items():
        assert torch.equal(statistic, found[name]), name
    assert vmf.qvalue_network.training
    vmf.qvalue_network.eval()  # in which mode the actor loss evaluates the critics
    factors, _ = brute_force.factors_and_lengths(vmf, batch, "min")
    torch.testing.assert_close(metadata["vmf_factor"].double(), factors, rtol=0, atol=1e-5)
