"""Gradients that are computed with the loss, against autograd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchrl.modules import MLP

from helpers.fast_losses import SEED, TOLERANCE, pair
from torchrl_vmfer.fast import backward

# Critics that do not use the fastest code: autograd or other products compute their gradients.
CRITICS = {
    "relu": {"activation_class": nn.ReLU},
    "wide": {"activation_class": nn.ReLU, "num_cells": [128, 128]},
    "tanh": {"activation_class": nn.Tanh},
    "elu": {"activation_class": nn.ELU},
    "silu": {"activation_class": nn.SiLU},
    "no last bias": {"activation_class": nn.ReLU, "bias_last_layer": False},
}


# Near-duplicates run in `make test-all` only.
QUICK = ("relu", "tanh", "no last bias")


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CRITICS]
)
def loss(request, algorithm):
    torch.manual_seed(0)
    network = MLP(8, 1, **{"num_cells": [64, 64]} | CRITICS[request.param])
    return pair(algorithm, critic=algorithm.critic(network=network))[1]


def updates(algorithm, loss, batch):
    return (lambda: algorithm.critic_loss(loss, batch)[0], lambda: loss.actor_loss(batch)[0])


def test_gradients_have_the_layout_of_their_parameters(algorithm, loss, make_batch):
    for update in updates(algorithm, loss, make_batch(16)):
        backward(update())
    assert loss.fast_path == "fast"
    for name, parameter in loss.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.stride() == parameter.stride(), name


def test_a_fused_optimizer_makes_the_same_steps_as_with_autograd(algorithm, loss, make_batch):
    """The fused kernel reads parameter and gradient in the same memory order."""
    twin, batch = copy.deepcopy(loss), make_batch(64)
    for trained, run in ((loss, backward), (twin, torch.Tensor.backward)):
        optimizer = torch.optim.Adam(trained.parameters(), lr=1e-2, fused=True)
        torch.manual_seed(SEED)
        for update in updates(algorithm, trained, batch) * 3:
            optimizer.zero_grad()
            run(update())
            optimizer.step()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6, msg=name)


def test_backward_equals_autograd(algorithm, make_batch):
    """Also with existing gradients and frozen parameters."""
    batch = make_batch(16)
    results = []
    for run in (torch.Tensor.backward, backward):
        _, loss = pair(algorithm)
        frozen = next(iter(loss.qvalue_network_params.values(True, True)))
        frozen.requires_grad_(False)
        torch.manual_seed(SEED)
        for _ in range(2):
            run(algorithm.critic_loss(loss, batch.clone())[0])
            run(loss.actor_loss(batch.clone())[0])
        assert frozen.grad is None
        results.append({name: p.grad for name, p in loss.named_parameters()})
    for name, gradient in results[0].items():
        assert (gradient is None) == (results[1][name] is None), name
        if gradient is not None:
            assert torch.equal(results[1][name], gradient), name


def test_backward_calls_hooks(algorithm, make_batch):
    _, loss = pair(algorithm)
    parameter = next(iter(loss.qvalue_network_params.values(True, True)))
    parameter.register_hook(lambda gradient: gradient * 0)
    backward(algorithm.critic_loss(loss, make_batch(16))[0])
    assert not parameter.grad.any()


def test_backward_calls_the_hook_of_the_loss(algorithm, make_batch):
    _, loss = pair(algorithm)
    value = algorithm.critic_loss(loss, make_batch(16))[0]
    value.register_hook(lambda gradient: gradient * 0)
    backward(value)
    gradients = [p.grad for p in loss.parameters() if p.grad is not None]
    assert gradients
    assert not any(gradient.any() for gradient in gradients)


def test_backward_fills_the_gradient_of_a_loss_that_retains_it(algorithm, make_batch):
    _, loss = pair(algorithm)
    value = algorithm.critic_loss(loss, make_batch(16))[0]
    value.retain_grad()
    backward(value)
    assert value.grad == 1


@pytest.mark.parametrize("first", [backward, torch.Tensor.backward])
def test_gradients_can_be_used_only_once(algorithm, make_batch, first):
    _, loss = pair(algorithm)
    value = algorithm.critic_loss(loss, make_batch(16))[0]
    first(value)
    for again in (backward, torch.Tensor.backward):
        with pytest.raises(RuntimeError, match="already"):
            again(value)


def test_backward_runs_any_other_loss():
    x = torch.tensor(3.0, requires_grad=True)
    backward(x.square())
    assert x.grad == 6


def test_losses_without_gradients_have_no_graph(algorithm, make_batch):
    slow, fast = pair(algorithm)
    values = []
    for loss in (slow, fast):
        torch.manual_seed(SEED)
        with torch.no_grad():
            values.append(algorithm.critic_loss(loss, make_batch(16))[0])
    assert values[1].grad_fn is None
    torch.testing.assert_close(values[1], values[0], **TOLERANCE)
