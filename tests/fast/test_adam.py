"""The optimizer's state can be loaded, copied and pickled by any Adam of PyTorch."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from torchrl_vmfer.fast import make_backend


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 8, 3), (2, 8), ())]


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("carry", [lambda state: state, copy.deepcopy, through_a_file])
def test_pytorch_continues_from_its_state(carry):
    ours, theirs = parameters(), parameters()
    optimizer = make_backend(fast=True).adam(ours, 0.1)
    torch.set_flush_denormal(False)
    reference = torch.optim.Adam(theirs, lr=0.1, fused=True)
    for step in range(8):
        if step == 5:
            state = carry(optimizer.state_dict())
            optimizer = torch.optim.Adam(ours, lr=0.1, fused=True)
            optimizer.load_state_dict(state)
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizer.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
