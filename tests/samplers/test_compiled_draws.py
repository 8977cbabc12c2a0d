"""Samplers draw and store the same with and without compiled functions."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.sampler_buffers import filled_buffer, rows, seeded
from torchrl_vmfer import VMFSampler


def history(update, **options):
    """The draws of a sampler and its state, after updates of drawn batches."""
    sampler = VMFSampler(**options)
    buffer = filled_buffer(sampler, 900, capacity=1000, batch_size=64, generator=seeded(0))
    torch.manual_seed(0)
    draws = []
    for number in range(20):
        index = buffer.sample()["index"]
        draws.append(index)
        update(buffer.sampler, index, buffer.storage)
        if number % 5 == 0:
            buffer.extend(rows(0, 30))
    state = buffer.sampler.state_dict()
    return {"draws": torch.stack(draws), "num_updates": torch.tensor(state["num_updates"])} | {
        name: state[name] for name in ("priorities", "last_update")
    }


def factors(count):
    return 1 + torch.rand(count) * (math.e - 1) * 0.999


UPDATES = {
    "vector": lambda index: (index, factors(64)),
    "one number": lambda index: (index, 1.5),
    "double precision": lambda index: (index, factors(64).double()),
    "matrix": lambda index: (index.view(8, 8), factors(64).view(8, 8)),
    "view": lambda index: (index[::2], factors(64)[::2]),
    "several times": lambda index: (index % 7, factors(64)),
    "slots without rows": lambda index: (torch.where(index % 3 == 0, -1, index), factors(64)),
    "int32": lambda index: (index.int(), factors(64)),
    "rounded above e": lambda index: (
        index,
        torch.full((64,), math.e).nextafter(torch.tensor(9.0)),
    ),
    "small": lambda index: (index, torch.full((64,), 1e-35)),
    "none": lambda index: (index[:0], factors(0)),
}


@pytest.mark.parametrize(
    "options", [{}, {"mode": "rank"}, {"power": 0.5}, {"smoothing": 0.9}], ids=str
)
@pytest.mark.parametrize("kind", UPDATES)
def test_same_draws_and_factors(use_kernels, kind, options):
    def update(sampler, index, storage):
        sampler.update_priority(*UPDATES[kind](index), storage=storage)

    results = []
    for wanted in (True, False):
        use_kernels(wanted)
        results.append(history(update, **options))
    torch.testing.assert_close(*results, rtol=0, atol=0)
