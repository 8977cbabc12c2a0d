"""Gradients that are found along with the loss, against autograd's."""

from __future__ import annotations

import pytest
import torch

from helpers.fast_losses import SEED, TOLERANCE, pair
from torchrl_vmfer.fast import backward


def test_backward_is_that_of_autograd(algorithm, make_batch):
    """Also where there are gradients already, and parameters that do not learn."""
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


@pytest.mark.parametrize("first", [backward, torch.Tensor.backward])
def test_gradients_are_handed_over_once(algorithm, make_batch, first):
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
