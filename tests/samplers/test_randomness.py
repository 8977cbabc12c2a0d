"""Draws depend on the random generator and the priorities only."""

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer

from helpers.sampler_buffers import EVERY, distinct_priorities, filled_buffer, seeded
from torchrl_vmfer import VMFSampler


@pytest.fixture(params=EVERY)
def make(request):
    return EVERY[request.param]


def scored(sampler, **options):
    buffer = filled_buffer(sampler, batch_size=32, **options)
    if sampler.signal:
        buffer.update_priority(torch.arange(10), distinct_priorities(10))
    return buffer


def test_the_generator_determines_the_draws_and_no_other_is_used(make):
    buffer, twin = (scored(make(), generator=seeded(5)) for _ in range(2))
    np.random.seed(1)  # noqa: NPY002 - TorchRL's own prioritized sampler draws from it
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    draws = [buffer.sample()["index"] for _ in range(2)]
    assert not torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    torch.manual_seed(0)
    assert torch.equal(torch.stack([twin.sample()["index"] for _ in range(2)]), torch.stack(draws))


def test_without_a_generator_the_global_seed_determines_the_draws(make_sampler):
    draws = []
    for _ in range(2):
        buffer = scored(make_sampler())
        torch.manual_seed(7)
        draws.append(buffer.sample()["index"])
    assert torch.equal(*draws)


def test_indices_may_be_overwritten_after_an_update():
    """Priorities are sorted at the next draw. Until then, the caller may change its array."""
    size = 10_000
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=VMFSampler("rank"), batch_size=8)
    written = buffer.extend(torch.arange(size))
    buffer.sample()
    index = torch.randint(size, (500,), generator=seeded(0))
    buffer.update_priority(index, 1 + torch.rand(500))
    index.zero_()
    written.zero_()
    buffer.sample()
    fresh = VMFSampler("rank")
    fresh.load_state_dict(buffer.sampler.state_dict())
    drawn = []
    for sampler in (buffer.sampler, fresh):
        torch.manual_seed(0)
        drawn.append(sampler.sample(buffer.storage, 5000)[0])
    assert torch.equal(*drawn)
