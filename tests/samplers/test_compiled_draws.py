"""Samplers draw and store the same with and without compiled functions."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_vmfer import VMFSampler

SIZE = 1000


def filled(**options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(SIZE),
        sampler=VMFSampler(**options),
        generator=torch.Generator().manual_seed(0),
        batch_size=64,
    )
    buffer.extend(TensorDict({"observation": torch.zeros(SIZE - 100, 1)}, [SIZE - 100]))
    return buffer


def history(update, **options):
    """The draws of a sampler and its state, after updates of drawn batches."""
    buffer = filled(**options)
    torch.manual_seed(0)
    draws = []
    for number in range(20):
        index = buffer.sample()["index"]
        draws.append(index)
        update(buffer.sampler, index, buffer.storage)
        if number % 5 == 0:
            buffer.extend(TensorDict({"observation": torch.zeros(30, 1)}, [30]))
    return torch.stack(draws), buffer.sampler.state_dict()


def assert_same(found, expected):
    (draws, state), (other_draws, other_state) = found, expected
    assert torch.equal(draws, other_draws)
    assert state.keys() == other_state.keys()
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other_state[key])
        else:
            assert value == other_state[key]


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
    assert_same(*results)
