"""TD3's actor on the mean of its critics, against autograd of the mean value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.losses import SEED, perturb, seeded
from torchrl_vmfer import VMFUncertainty

TARGETS = [(2, 2), (4, 2), (4, None)]  # critics, and how many of them form the TD target


def mean_objective(brute_force, loss, batch, targets):
    """Computes -mean_i Q_i with autograd, one critic after the other."""
    action = brute_force.policy_action(loss, batch)
    return -brute_force.critic_values(loss, batch, action)[:targets].mean()


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(("critics", "targets"), TARGETS)
def test_the_actor_climbs_the_mean_of_the_critics_of_the_target(
    td3, brute_force, make_batch, gradients_of, critics, targets, measure
):
    options = {"num_qvalue_nets": critics, "num_target_critics": targets, "measure": measure}
    loss = td3.build(objective="mean", activation=nn.ReLU, **options)
    batch = make_batch(30)
    expected = mean_objective(brute_force, loss, batch, targets)
    expected.backward()
    expected_gradients = [g.clone() for g in gradients_of(loss.actor_network_params)]
    loss.zero_grad()

    value, metadata = loss.actor_loss(batch.clone())
    value.backward()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    found = gradients_of(loss.actor_network_params)
    for gradient, reference in zip(found, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)
    values = brute_force.critic_values(loss, batch, brute_force.policy_action(loss, batch))
    rows = metadata["state_action_value_actor"]
    torch.testing.assert_close(rows, values[: len(rows)].detach(), rtol=1e-5, atol=1e-5)
    assert ("vmf_factor" in metadata) == measure


@pytest.mark.parametrize(("critics", "targets"), TARGETS)
def test_the_direction_of_the_mean_gradient_enters_the_factors(
    td3, brute_force, make_batch, critics, targets
):
    options = {"num_qvalue_nets": critics, "num_target_critics": targets}
    loss = td3.build(objective="mean", **options)
    assert loss.used == "mean"
    batch = make_batch(20)
    action = brute_force.policy_action(loss, batch)
    gradients = brute_force.action_gradients(loss, batch, action).double()
    directions = gradients / gradients.norm(dim=-1, keepdim=True)
    mean = gradients[:targets].sum(0)
    alignment = (directions.mean(0) * mean).sum(-1) / mean.norm(dim=-1)
    expected = alignment.exp()
    found = loss.actor_loss(batch.clone())[1]["vmf_factor"].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    measured = VMFUncertainty(loss)(batch.clone())["vmf", "factor"].double()
    torch.testing.assert_close(measured, expected, rtol=0, atol=1e-5)
    assert (found - brute_force.sampling_factor(gradients, 0)).abs().max() > 1e-3


def test_the_critic_loss_does_not_depend_on_the_objective(td3, make_batch):
    losses = [td3.build(objective=objective) for objective in ("first", "mean")]
    values = [seeded(loss.value_loss, make_batch(20))[0] for loss in losses]
    assert torch.equal(*values)


@pytest.mark.parametrize("measure", [False, True])
def test_the_first_critic_remains_torchrls_objective_bit_for_bit(td3, make_batch, measure):
    stock = td3.build(td3.stock_class)
    loss = td3.build(objective="first", measure=measure)
    for each in (stock, loss):
        perturb(each.qvalue_network_params, [1])
    batch = make_batch(20)
    (expected, _), (value, _) = (seeded(each.actor_loss, batch.clone()) for each in (stock, loss))
    assert torch.equal(value, expected)


def test_the_factors_can_still_refer_to_the_first_critic(td3, brute_force, make_batch):
    loss = td3.build(objective="mean", used="first", num_qvalue_nets=4)
    batch = make_batch(20)
    action = brute_force.policy_action(loss, batch, seed=SEED)
    expected = brute_force.sampling_factor(brute_force.action_gradients(loss, batch, action), 0)
    found = loss.actor_loss(batch.clone())[1]["vmf_factor"].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_an_unknown_objective_is_rejected(td3):
    with pytest.raises(ValueError, match="objective must be 'first' or 'mean', got 'min'"):
        td3.build(objective="min")
