"""Ages of priorities, the fraction of slots without one, and the effective sample size."""

import math

import numpy as np
import pytest
import torch

from helpers.sampler_buffers import EVERY, distinct_priorities, filled_buffer, rows

SCORED = ("uncertainty", "rank", "power", "pool", "inverse_td", "gradient_norm")


@pytest.fixture(params=SCORED)
def make_scored(request):
    return EVERY[request.param]


def test_ages_follow_a_plain_record_of_the_updates(make_scored):
    rng = np.random.default_rng(0)
    buffer = filled_buffer(make_scored(), 5, capacity=8)
    last, updates = dict.fromkeys(range(5)), 0
    for _ in range(60):
        kind = rng.integers(4)
        if kind == 0:
            for slot in buffer.extend(rows(0, int(rng.integers(1, 4)))).tolist():
                last[slot] = None
        elif kind == 1:
            buffer.update_priority(torch.empty(0, dtype=torch.long), torch.empty(0))
            buffer.sampler.load_state_dict(buffer.sampler.state_dict())
        else:
            slots = rng.integers(len(buffer), size=3)
            buffer.update_priority(torch.from_numpy(slots), torch.tensor([1.0, 2.0, 1.5]))
            updates += 1
            last |= dict.fromkeys(slots.tolist(), updates)
        ages = [updates - at for at in last.values() if at is not None]
        expected = sum(ages) / len(ages) if ages else math.nan
        assert buffer.sampler.priority_age() == pytest.approx(expected, nan_ok=True)
        assert buffer.sampler.unscored_fraction() == pytest.approx(1 - len(ages) / len(last))


def test_nothing_is_known_without_slots_or_updates(make_scored):
    sampler = make_scored()
    assert math.isnan(sampler.priority_age())
    assert math.isnan(sampler.unscored_fraction())
    buffer = filled_buffer(sampler)
    assert math.isnan(sampler.priority_age())
    assert sampler.unscored_fraction() == 1
    buffer.update_priority(torch.arange(5), 1.5)
    buffer.empty()
    assert math.isnan(sampler.unscored_fraction())


def test_the_effective_sample_size_is_that_of_the_probabilities(make_sampler):
    buffer = filled_buffer(make_sampler())
    buffer.update_priority(torch.arange(10), distinct_priorities(10))
    expected = 1 / math.fsum(p * p for p in buffer.sampler.probabilities().tolist())
    assert buffer.sampler.effective_sample_size() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["rank_prioritized", "recent", "old"])
def test_samplers_that_record_no_updates_know_no_ages(name):
    sampler = filled_buffer(EVERY[name]()).sampler
    assert math.isnan(sampler.priority_age())
    assert math.isnan(sampler.unscored_fraction())
