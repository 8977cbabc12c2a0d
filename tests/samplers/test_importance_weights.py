"""Importance weights of rank-based prioritization are exact, and the actor gets none."""

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import (
    Kind,
    RecordedBuffer,
    full,
    mostly_equal,
    wrapped,
)
from torchrl_vmfer import RankPrioritizedSampler


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("size", [1, 7, 1024])
@pytest.mark.parametrize("situation", [full, wrapped, mostly_equal])
def test_importance_weights_match_the_buffer(alpha, beta, size, situation):
    kind = Kind("", RankPrioritizedSampler, {"alpha": alpha, "beta": 0.5}, alpha)
    recorded = RecordedBuffer(kind, size, seed=15)
    situation(recorded, size, np.random.default_rng(15))
    recorded.sampler.beta = beta  # may change during training
    weights = (1 / size / recorded.probabilities) ** beta
    weights /= weights.max()
    batch = recorded.buffer.sample()
    assert batch["priority_weight"].dtype == torch.float32
    expected = weights[batch["index"].numpy()]
    np.testing.assert_allclose(batch["priority_weight"], expected, rtol=1e-6)
    index, info = recorded.sampler.sample(recorded.buffer.storage, 5000)
    np.testing.assert_allclose(info["priority_weight"], weights[index.numpy()], rtol=1e-6)


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_weights_are_correct_where_the_probability_falls_steeply(tied):
    """P of the last rank is far below the rounding error of a sum that starts with rank 1."""
    kind = Kind("", RankPrioritizedSampler, {"alpha": 4.0, "beta": 0.5}, 4.0)
    recorded = RecordedBuffer(kind, 20_000, seed=20)
    full(recorded, 20_000, np.random.default_rng(20))
    if tied:
        recorded.update(np.arange(0, 20_000, 100), 0.0)
    np.testing.assert_allclose(recorded.sampler.probabilities(), recorded.probabilities, rtol=1e-6)
    index, info = recorded.sampler.sample(recorded.buffer.storage, 5000)
    weights = (recorded.probabilities.min() / recorded.probabilities) ** 0.5
    np.testing.assert_allclose(info["priority_weight"], weights[index.numpy()], rtol=1e-6)
