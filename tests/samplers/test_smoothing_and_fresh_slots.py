"""The priority of a slot: a running average of its factors, or the default for a new slot."""

import math

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import PRIORITIZED, RANK, UNCERTAINTY, RecordedBuffer
from torchrl_vmfer import VMFSampler


@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_smoothing_is_the_running_average_with_the_last_duplicate(mode, smoothing):
    recorded = RecordedBuffer(RANK, 50, sampler=VMFSampler(mode, smoothing=smoothing))
    recorded.extend(50)
    rng = np.random.default_rng(12)
    expected = np.ones(50)
    for _ in range(100):
        slots = rng.integers(50, size=40)
        factors = rng.uniform(0.4, math.e, 40)
        recorded.buffer.update_priority(torch.as_tensor(slots), torch.as_tensor(factors))
        last = dict(zip(slots.tolist(), factors.tolist(), strict=True))
        for slot, factor in last.items():
            expected[slot] = smoothing * expected[slot] + (1 - smoothing) * factor
    # The average discounts rounding errors of earlier steps, so this tolerance suffices.
    priorities = recorded.sampler.state_dict()["priorities"]
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)


def test_smoothing_restarts_at_the_initial_factor_when_a_slot_is_overwritten():
    sampler = VMFSampler(smoothing=0.9, initial_factor=2.0)
    recorded = RecordedBuffer(UNCERTAINTY, 3, sampler=sampler)
    recorded.extend(3)
    recorded.buffer.update_priority(torch.arange(3), 1.0)
    recorded.extend(1)
    recorded.buffer.update_priority(torch.tensor([0]), 1.0)
    expected = torch.tensor([1.9, 1.9, 1.9])
    torch.testing.assert_close(sampler.state_dict()["priorities"], expected, rtol=1e-6, atol=0)
    recorded.extend(2)
    expected = torch.tensor([1.9, 2.0, 2.0])
    torch.testing.assert_close(sampler.state_dict()["priorities"], expected, rtol=1e-6, atol=0)


def test_new_transitions_get_the_highest_priority_seen():
    recorded = RecordedBuffer(PRIORITIZED[0], 4)
    recorded.extend(3)
    assert recorded.sampler.state_dict()["priorities"].tolist() == [1, 1, 1]
    recorded.buffer.update_priority(torch.arange(3), torch.tensor([0.25, 8.0, 0.5]))
    recorded.buffer.update_priority(
        torch.tensor([1]), 0.125
    )  # 8 was seen, although it is no longer stored
    recorded.extend(2)
    assert recorded.sampler.state_dict()["priorities"].tolist() == [8, 0.125, 0.5, 8]
    assert recorded.sampler.probabilities().argmax() in (0, 3)
