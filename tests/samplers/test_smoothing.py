"""With smoothing, the factor of a slot is a running average."""

import math

import numpy as np
import pytest
import torch

from helpers.sampler_buffers import filled_buffer, rows
from torchrl_vmfer import VMFSampler


@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_smoothing_is_the_running_average_with_the_last_duplicate(mode, smoothing):
    buffer = filled_buffer(VMFSampler(mode, smoothing=smoothing), 50, capacity=50)
    rng = np.random.default_rng(12)
    expected = np.ones(50)
    for _ in range(100):
        slots = rng.integers(50, size=40)
        factors = rng.uniform(0.4, math.e, 40)
        buffer.update_priority(torch.as_tensor(slots), torch.as_tensor(factors))
        last = dict(zip(slots.tolist(), factors.tolist(), strict=True))
        for slot, factor in last.items():
            expected[slot] = smoothing * expected[slot] + (1 - smoothing) * factor
    # The average discounts rounding errors of earlier steps, so this tolerance suffices.
    priorities = buffer.sampler.state_dict()["priorities"]
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)


def test_smoothing_restarts_at_the_initial_factor_when_a_slot_is_overwritten():
    buffer = filled_buffer(VMFSampler(smoothing=0.9, initial_factor=2.0), 3, capacity=3)
    buffer.update_priority(torch.arange(3), 1.0)
    buffer.extend(rows(3, 1))
    buffer.update_priority(torch.tensor([0]), 1.0)
    buffer.extend(rows(4, 1))
    priorities = buffer.sampler.state_dict()["priorities"]
    assert priorities.tolist() == pytest.approx([1.9, 2.0, 1.9])
