"""The fast optimizer equals PyTorch's Adam."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from torchrl_vmfer.fast import make_backend
from torchrl_vmfer.fast.adam import Adam


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 8, 3), (2, 8), ())]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.99)])
@pytest.mark.parametrize("stop", [None, 0, 1, 5])
def test_same_numbers_and_state_as_pytorch(stop, betas):
    """Also after saving and loading, where a shared counter must not be incremented twice."""
    ours, theirs = parameters(), parameters()
    optimizer = make_backend(fast=True).adam(ours, 0.01, betas)
    torch.set_flush_denormal(False)
    assert isinstance(optimizer, Adam)
    reference = torch.optim.Adam(theirs, lr=0.01, betas=betas, fused=True)
    for step in range(8):
        if step == stop:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = Adam(ours, lr=0.01, betas=betas, fused=True)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizer.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    state, expected = optimizer.state_dict()["state"], reference.state_dict()["state"]
    for index in expected:
        for name, value in expected[index].items():
            assert torch.equal(state[index][name], value)


def test_zero_grad_drops_gradients():
    ours = parameters()
    optimizer = Adam(copy.copy(ours), lr=0.01, fused=True)
    for parameter in ours:
        parameter.grad = torch.ones_like(parameter)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in ours)
