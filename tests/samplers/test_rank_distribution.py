"""The ranks of random numbers against a search in the cumulative sums."""

import copy
import pickle

import numpy as np
import pytest
import torch

from torchrl_vmfer.samplers.distributions import RankDistribution

EXPONENTS = [0.0, 0.3, 0.7, 0.999, 1.0, 1.001, 1.5, 2.0, 10.0, 60.0, 800.0]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 1000, 65_535, 65_536, 300_000])
def test_compiled_draws_equal_those_of_a_search(exponent, length, use_kernels):
    priorities = np.random.default_rng(length).permutation(length).astype(np.float32)
    draws = []
    for compiled in (True, False):
        use_kernels(compiled)
        generator = torch.Generator().manual_seed(length)
        draws.append(RankDistribution(exponent).draw(priorities, 2000, generator))
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda ranks: pickle.loads(pickle.dumps(ranks))])
def test_a_copy_follows_its_priorities_and_not_those_of_the_original(copied):
    priorities = np.linspace(0, 3, 9000, dtype=np.float32)
    original = RankDistribution()
    original.draw(priorities, 4, None)
    other = copied(original)
    original.mark(np.arange(500))
    original.draw(priorities[::-1].copy(), 4, None)
    expected, drawn = (
        ranks.draw(priorities, 1000, torch.Generator().manual_seed(1))
        for ranks in (RankDistribution(), other)
    )
    np.testing.assert_array_equal(drawn, expected)
