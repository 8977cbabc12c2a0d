"""Millions of draws and updates: memory use is constant, and nothing drifts from a plain record.

Chi-square tests have fixed seeds and a false-alarm rate of ``ALARM``.
"""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

ALARM = 1e-6
LEGS = 10  # after each the sampler is compared with the record
BATCH = 4
CYCLES_PER_WRITE = 100
BYTES_THAT_MAY_STAY = 4e6  # in the allocator's pools
STATM = Path("/proc/self/statm")

# A sampler, and the exponent of its ranks: None if P is proportional to the priority.
SAMPLERS = {
    "uncertainty": (lambda: VMFSampler("uncertainty"), None),
    "rank": (lambda: VMFSampler("rank"), 1.0),
    "rank_prioritized": (lambda: RankPrioritizedSampler(alpha=0.7, beta=0.5), 0.7),
}


class Soak:
    """A full buffer in continuous use, with an independent record of its priorities."""

    def __init__(self, name, capacity):
        make_sampler, self.exponent = SAMPLERS[name]
        self.sampler, self.fresh = make_sampler(), make_sampler()
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=self.sampler,
            batch_size=BATCH,
            generator=torch.Generator().manual_seed(capacity),
        )
        self.random = np.random.default_rng(capacity)
        self.record = np.ones(capacity, np.float32)
        self.highest, self.cursor = np.float32(1), 0
        self.write(capacity)

    def write(self, count):
        self.buffer.extend(TensorDict({"observation": torch.zeros(count)}, [count]))
        slots = (self.cursor + np.arange(count)) % len(self.record)
        self.record[slots] = 1 if isinstance(self.sampler, VMFSampler) else self.highest
        self.cursor = (self.cursor + count) % len(self.record)

    def run(self, cycles):
        storage, record, sampler = self.buffer.storage, self.record, self.sampler
        for _ in range(cycles // CYCLES_PER_WRITE):
            priorities = self.random.uniform(1, math.e, (CYCLES_PER_WRITE, BATCH)).astype(
                np.float32
            )
            priorities[::3] = priorities[::3].round(
                1
            )  # few distinct values, so that there are ties
            for new, tensor in zip(priorities, torch.from_numpy(priorities), strict=True):
                index, _ = sampler.sample(storage, BATCH)
                sampler.update_priority(index, tensor, storage=storage)
                record[index.numpy()] = new
            self.highest = max(self.highest, priorities.max())
            self.write(BATCH)

    def expected(self):
        """Computes the probabilities from the record."""
        priorities = self.record.astype(np.float64)
        if self.exponent is None:
            return priorities / priorities.sum()
        weight = np.empty(len(priorities))
        weight[np.argsort(-priorities)] = np.arange(1, len(priorities) + 1) ** -self.exponent
        _, tie = np.unique(priorities, return_inverse=True)
        weight = (np.bincount(tie, weights=weight) / np.bincount(tie))[tie]
        return weight / weight.sum()

    def check(self, draws):
        """Asserts that priorities, probabilities and draws equal those of a new sampler."""
        np.testing.assert_array_equal(self.sampler.state_dict()["priorities"], self.record)
        expected = self.expected()
        np.testing.assert_allclose(self.sampler.probabilities(), expected, rtol=1e-9)
        self.fresh.load_state_dict(self.sampler.state_dict())
        drawn = []
        for sampler in (self.fresh, self.sampler):
            sampler._rng = torch.Generator().manual_seed(0)
            drawn.append(sampler.sample(self.buffer.storage, 1000)[0])
            sampler._rng = self.buffer._rng
        assert torch.equal(*drawn)
        assert_drawn_from(self.sampler.sample(self.buffer.storage, draws)[0].numpy(), expected)


def assert_drawn_from(slots, probabilities):
    # Cells of neighboring ranks that expect about 100 draws each, or 1 slot with more.
    order = np.argsort(-probabilities)
    cell = np.empty(len(order), np.int64)
    mass = np.cumsum(probabilities[order])
    _, cell[order] = np.unique((mass * len(slots) / 100).astype(np.int64), return_inverse=True)
    expected = np.bincount(cell, weights=probabilities) * len(slots)
    observed = np.bincount(cell[slots], minlength=len(expected))
    assert stats.chisquare(observed, expected * len(slots) / expected.sum()).pvalue > ALARM


def resident_bytes():
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(name, capacity, cycles, draws):
    run = Soak(name, capacity)
    memory = []
    for _ in range(LEGS):
        run.run(cycles // LEGS)
        run.check(draws)
        memory.append(resident_bytes() if STATM.exists() else 0)
    # The comparisons allocate large arrays temporarily, so single measurements are not reliable.
    assert min(memory[-3:]) - max(memory[:3]) < BYTES_THAT_MAY_STAY, memory


@pytest.mark.parametrize("capacity", [100, 20_000])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_short_use_causes_no_drift(name, capacity):
    soak(name, capacity, cycles=5_000, draws=20_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncertainty", "rank"])  # rank_prioritized draws as rank does
def test_ten_million_cycles_on_a_small_buffer_cause_no_drift(name):
    soak(name, 100, cycles=10_000_000, draws=100_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_million_cycles_on_a_large_buffer_cause_no_drift(name):
    soak(name, 1_000_000, cycles=1_000_000, draws=1_000_000)
