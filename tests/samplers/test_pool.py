"""A VMFSampler with a pool, against probabilities that are enumerated or computed differently."""

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import filled_buffer, marginal_probabilities, rows, seeded
from torchrl_vmfer import VMFSampler

MODES = ("uncertainty", "rank")
each_mode = pytest.mark.parametrize("mode", MODES)

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def make(count, factors, seed=0, **kwargs):
    sampler, capacity, generator = VMFSampler(**kwargs), 2 * count, seeded(seed)
    buffer = filled_buffer(sampler, count, capacity, batch_size=8, generator=generator)
    buffer.update_priority(torch.arange(count), torch.as_tensor(factors))
    return buffer


@each_mode
@pytest.mark.parametrize(
    ("factors", "size"), [([1.0, 2.7, 1.5], 2), ([1.0, 2.7, 1.5, 1.5], 3), ([1.0, 2.0], 1)]
)
def test_slots_are_drawn_with_the_marginal_probability_over_all_pools(mode, factors, size):
    buffer = make(len(factors), factors, mode=mode, pool_size=size, seed=1)
    # One draw per pool: draws from the same pool are not independent.
    draws = np.array([int(buffer.sample(1)["row"]) for _ in range(3000)])
    assert_drawn_from(draws, marginal_probabilities(np.float32(factors), size, mode))


def test_updated_factors_and_new_transitions_are_used():
    buffer = make(20, torch.full((20,), 1e-6), pool_size=4000)
    buffer.update_priority(torch.tensor([7]), 2.5)
    # Another slot is drawn with probability 8 * 19e-6 / 2.5 < 1e-4.
    assert buffer.sample()["row"].tolist() == [7] * 8
    buffer.extend(rows(20, 3))
    assert set(buffer.sample(500)["row"].tolist()) == {7, 20, 21, 22}


@each_mode
def test_probabilities_raises_an_error(mode):
    sampler = make(10, torch.ones(10), mode=mode, pool_size=4).sampler
    with pytest.raises(NotImplementedError, match=r"pool_size=4 .* no closed form"):
        sampler.probabilities()
    assert np.isnan(sampler.effective_sample_size())


@pytest.mark.parametrize("power", [-4.0, 0.5, 8.0])
def test_a_pool_is_resampled_by_the_power(power):
    """With a pool of one, P is uniform; with a huge one, P approaches that of the buffer."""
    factors = np.array([1.0, 1.3, 2.0], np.float32)
    weights = factors.astype(np.float64) ** power
    for size, expected in ((1, np.full(3, 1 / 3)), (20_000, weights / weights.sum())):
        buffer = make(3, factors, power=power, pool_size=size, seed=1)
        count = 1 if size == 1 else 30
        draws = [buffer.sample(count)["row"].numpy() for _ in range(3000 // count)]
        assert_drawn_from(np.concatenate(draws), expected)
