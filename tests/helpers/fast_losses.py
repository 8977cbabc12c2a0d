"""Losses on both paths, and an assertion that they agree."""

from __future__ import annotations

import torch
from torch import nn

SEED = 5


TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def gradients(loss, value):
    loss.zero_grad()
    value.backward()
    return {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}


def assert_agree(slow, fast, update):
    """Asserts that both paths give the same loss, metadata, gradients and random state."""
    torch.manual_seed(SEED)
    expected, expected_metadata = update(slow)
    expected_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    value, metadata = update(fast)
    assert torch.equal(torch.get_rng_state(), expected_state)
    torch.testing.assert_close(value, expected, **TOLERANCE)
    assert metadata.keys() == expected_metadata.keys()
    for name, entry in expected_metadata.items():
        if name == "state_action_value_actor" and not fast.measure:
            entry = entry[:1]  # the others are not evaluated
        torch.testing.assert_close(metadata[name], entry.detach(), **TOLERANCE)
    expected_gradients, found = gradients(slow, expected), gradients(fast, value)
    assert found.keys() == expected_gradients.keys()
    assert found
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(found[name], gradient, **TOLERANCE, msg=name)


def pair(algorithm, **options):
    """Makes two losses with networks that use most of the optimizations."""
    options = {"activation": nn.ReLU} | options
    slow, fast = (algorithm.build(fast=fast, **options) for fast in (False, True))
    return slow, fast
