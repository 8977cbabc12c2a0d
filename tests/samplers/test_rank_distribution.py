"""The ranks of random numbers against a search in the cumulative sums."""

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer

from torchrl_vmfer import VMFSampler
from torchrl_vmfer.compiled import functions
from torchrl_vmfer.samplers.distributions import RankDistribution

EXPONENTS = [0.0, 0.3, 0.7, 0.999, 1.0, 1.001, 1.5, 2.0, 10.0, 60.0, 800.0]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 1000, 65_535, 65_536, 300_000])
@pytest.mark.parametrize("compiled", [True, False])
def test_ranks_equal_those_of_a_search(exponent, length, compiled, use_kernels):
    use_kernels(compiled)
    rng = np.random.default_rng(length)
    priorities = rng.permutation(length).astype(np.float32)
    ranks = RankDistribution(exponent)
    ranks._refresh(priorities)
    random = np.concatenate([rng.random(2000), [0.0, 2.0**-53, 0.5, 1 - 2.0**-53]])
    mass = random * (ranks._mass[length] - ranks._mass[0]) + ranks._mass[0]
    expected = np.searchsorted(ranks._mass[1:length], mass, side="right")
    np.testing.assert_array_equal(ranks._ranks_of(random, length), expected)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.5])
def test_the_first_guess_of_compiled_code_is_usually_correct(exponent, monkeypatch):
    """Otherwise a draw would take the time of the search that it avoids."""
    length, wrong, find = 300_000, [], functions().ranks_at
    monkeypatch.setattr(functions(), "ranks_at", lambda *given: wrong.append(find(*given)))
    ranks = RankDistribution(exponent)
    ranks._refresh(np.arange(length, dtype=np.float32))
    ranks._ranks_of(np.random.default_rng(0).random(10_000), length)
    assert len(wrong) == 1
    assert wrong[0] < 500


def test_indices_may_be_overwritten_after_an_update():
    """Priorities are sorted at the next draw. Until then, the caller may change its array."""
    size = 10_000
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=VMFSampler("rank"), batch_size=8)
    written = buffer.extend(torch.arange(size))
    buffer.sample()
    index = torch.randint(size, (500,), generator=torch.Generator().manual_seed(0))
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
