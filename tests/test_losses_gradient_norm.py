"""The norm of the gradient that moves the actor, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.losses import SEED, seeded


def expected_norms(brute_force, loss, batch, used, count):
    action = brute_force.policy_action(loss, batch, seed=SEED).detach().requires_grad_()
    values = brute_force.critic_values(loss, batch, action)
    moved = {"first": values[0], "min": values[:count].amin(0), "mean": values[:count].mean(0)}
    (gradient,) = torch.autograd.grad(moved[used].sum(), action)
    return gradient.norm(dim=-1)


@pytest.mark.parametrize("measure", [False, True])
def test_equals_autograd_of_what_the_actor_maximizes(
    any_algorithm, brute_force, make_batch, measure
):
    loss = any_algorithm.build(gradient_norm=True, measure=measure)
    batch = make_batch((3, 4))
    _, metadata = seeded(loss.actor_loss, batch.clone())
    count = loss.target_count
    expected = expected_norms(brute_force, loss, batch, any_algorithm.used, count)
    found = metadata["vmf_gradient_norm"]
    assert found.shape == batch.batch_size
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert ("vmf_factor" in metadata) == measure


@pytest.mark.parametrize("options", [{"objective": "mean"}, {"used": "min"}], ids=str)
def test_depends_on_the_objective_and_not_on_the_critic_of_the_factors(
    td3, brute_force, make_batch, options
):
    loss = td3.build(gradient_norm=True, num_qvalue_nets=4, **options)
    batch = make_batch(9)
    expected = expected_norms(brute_force, loss, batch, options.get("objective", "first"), 2)
    found = loss.actor_loss(batch)[1]["vmf_gradient_norm"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("measure", [False, True])
def test_the_loss_does_not_change(any_algorithm, make_batch, measure):
    values = [
        seeded(any_algorithm.build(measure=measure, gradient_norm=norm).actor_loss, make_batch(8))
        for norm in (False, True)
    ]
    torch.testing.assert_close(values[0][0], values[1][0], rtol=1e-6, atol=1e-6)
    assert "vmf_gradient_norm" not in values[0][1]


def test_forward_returns_it_and_writes_it_into_the_batch(any_algorithm, make_batch):
    loss, batch = any_algorithm.build(gradient_norm=True, measure=False), make_batch(6)
    losses = seeded(loss, batch)
    assert "vmf_gradient_norm" in loss.out_keys
    assert torch.equal(batch["vmf_gradient_norm"], losses["vmf_gradient_norm"])
    assert "vmf_factor" not in batch.keys() | set(loss.out_keys)


def test_a_critic_that_ignores_the_action_has_no_gradient(td3, make_batch):
    loss = td3.build(gradient_norm=True, activation=nn.ReLU)
    loss.qvalue_network_params.data.zero_()
    assert (loss.actor_loss(make_batch(5))[1]["vmf_gradient_norm"] == 0).all()
