"""Millions of draws and updates: memory use is constant, and nothing drifts from a plain record."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import (
    PRIORITIZED,
    RANK,
    UNCERTAINTY,
    RecordedBuffer,
    assert_drawn_from,
    each,
)

LEGS = 10  # after each the sampler is compared with the record
BATCH = 4
CYCLES_PER_WRITE = 100
BYTES_THAT_MAY_STAY = 4e6  # in the allocator's pools
STATM = Path("/proc/self/statm")


def random_priorities(rng, count):
    priorities = rng.uniform(1, 2.7, (count, BATCH)).astype(np.float32)
    priorities[::3] = priorities[::3].round(1)  # few distinct values, so that there are ties
    return priorities


def run(recorded, cycles, rng):
    for _ in range(cycles // CYCLES_PER_WRITE):
        for new in random_priorities(rng, CYCLES_PER_WRITE):
            recorded.update(recorded.draw(BATCH), new)
        recorded.extend(BATCH)


def check(recorded, draws):
    """Asserts that priorities, probabilities and draws equal those of a new sampler."""
    sampler, expected = recorded.sampler, recorded.probabilities
    np.testing.assert_array_equal(sampler.state_dict()["priorities"], recorded.priorities)
    np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-9)
    fresh = recorded.kind.make_sampler()
    fresh.load_state_dict(sampler.state_dict())
    drawn = []
    for each_sampler in (fresh, sampler):
        each_sampler.generator = torch.Generator().manual_seed(0)
        drawn.append(each_sampler.sample(recorded.buffer.storage, 1000)[0])
        each_sampler.generator = recorded.buffer._rng
    assert torch.equal(*drawn)
    assert_drawn_from(recorded.draw(draws), expected)


def resident_bytes():
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else 0


def assert_constant(memory):
    # The comparisons allocate large arrays temporarily, so single measurements are not reliable.
    assert min(memory[-3:]) - max(memory[:3]) < BYTES_THAT_MAY_STAY, memory


def soak(kind, capacity, cycles, draws):
    recorded, rng, memory = RecordedBuffer(kind, capacity), np.random.default_rng(capacity), []
    recorded.extend(capacity)
    # Otherwise the index of the ranks would grow while equal priorities become different.
    recorded.update(np.arange(capacity), random_priorities(rng, capacity // BATCH).ravel())
    for _ in range(LEGS):
        run(recorded, cycles // LEGS, rng)
        check(recorded, draws)
        memory.append(resident_bytes())
    assert_constant(memory)


@pytest.mark.parametrize("capacity", [100, 20_000])
@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
def test_a_short_use_causes_no_drift(kind, capacity):
    soak(kind, capacity, cycles=5_000, draws=20_000)


@pytest.mark.slow
@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
def test_a_million_cycles_on_a_large_buffer_cause_no_drift(kind):
    soak(kind, 1_000_000, cycles=1_000_000, draws=1_000_000)


@each([RANK, PRIORITIZED[0]])
def test_memory_is_constant_while_priorities_increase(kind):
    recorded, rng, memory = RecordedBuffer(kind, 10_000), np.random.default_rng(0), []
    recorded.extend(10_000)
    for leg in range(LEGS):
        for cycle in range(1000):
            new = 1 + (leg + (cycle + rng.random(256)) / 1000) / LEGS
            recorded.sampler.update_priority(recorded.draw(256), torch.from_numpy(new))
        memory.append(resident_bytes())
    assert_constant(memory)
