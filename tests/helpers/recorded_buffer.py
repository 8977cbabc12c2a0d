"""Buffers with a plain record of their writes, and chi-square tests against that record.

Every statistical check has a fixed seed and a false-alarm rate of ``ALARM``, so that all of
them together would fail a correct sampler less than once in a thousand choices of seeds.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from helpers.sampler_buffers import exact_probabilities
from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

DRAWS = 1_000_000
ALARM = 1e-6


@dataclass(frozen=True)
class Kind:
    """A sampler, and its expected behavior, computed without the package.

    ``exponent`` is the exponent of the rank, ``None`` if P is a power of the priority.
    """

    name: str
    sampler_type: type
    arguments: dict[str, Any]
    exponent: float | None

    def make_sampler(self):
        return self.sampler_type(**self.arguments)

    def random_priorities(self, rng, count):
        if self.sampler_type is VMFSampler:
            return rng.uniform(1, math.e, count).astype(np.float32)
        return rng.exponential(size=count).astype(np.float32)

    def default_priority(self, largest_seen):
        if self.sampler_type is VMFSampler or largest_seen is None:
            return 1.0
        return largest_seen

    def probabilities(self, priorities):
        return exact_probabilities(self.make_sampler(), priorities)


UNCERTAINTY = Kind("uncertainty", VMFSampler, {"mode": "uncertainty"}, None)
RANK = Kind("rank", VMFSampler, {"mode": "rank"}, 1.0)
PRIORITIZED = [
    Kind(f"rank_prioritized_{alpha}", RankPrioritizedSampler, {"alpha": alpha, "beta": 0.5}, alpha)
    for alpha in (0.7, 0.0, 1.0, 1.5)
]
POWERS = [
    Kind(f"power_{power:g}", VMFSampler, {"power": power}, None)
    for power in (8.0, -4.0, 0.5, 0.0, -1.0, 4.0, 100.0, -100.0)
]
KINDS = [UNCERTAINTY, RANK, *POWERS[:2], *PRIORITIZED]


def each(kinds):
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name)


def rows(count):
    return TensorDict({"observation": torch.zeros(count)}, [count])


class RecordedBuffer:
    """A replay buffer with a plain array of the expected priorities of its slots."""

    def __init__(self, kind, capacity, seed=0, sampler=None):
        self.kind = kind
        self.capacity = capacity
        self.sampler = kind.make_sampler() if sampler is None else sampler
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=self.sampler,
            batch_size=8,
            generator=torch.Generator().manual_seed(seed),
        )
        self._held = np.full(capacity, np.nan, np.float32)
        self._writes = 0
        self._largest_seen = None

    def extend(self, count):
        self.buffer.extend(rows(count))
        slots = np.arange(self._writes, self._writes + count) % self.capacity
        self._held[slots] = self.kind.default_priority(self._largest_seen)
        self._writes += count

    def update(self, slots, priorities):
        """Sets priorities. A dictionary keeps the last of several values for one slot."""
        self.buffer.update_priority(torch.as_tensor(slots), torch.as_tensor(priorities))
        slots = np.atleast_1d(slots)
        priorities = np.broadcast_to(np.float32(priorities), slots.shape)
        last = dict(zip(slots.tolist(), priorities.tolist(), strict=True))
        self._held[list(last)] = list(last.values())
        self._largest_seen = max(priorities.max(initial=0), self._largest_seen or 0)

    def draw(self, count=DRAWS):
        index, _ = self.sampler.sample(self.buffer.storage, count)
        assert index.dtype == torch.int64
        return index.numpy()

    def __len__(self):
        return min(self._writes, self.capacity)

    @property
    def priorities(self):
        return self._held[: len(self)]

    @property
    def probabilities(self):
        return self.kind.probabilities(self.priorities)


def full(recorded, size, rng):
    recorded.extend(size)
    recorded.update(np.arange(size), recorded.kind.random_priorities(rng, size))


def wrapped(recorded, size, rng):
    total = math.ceil(3.27 * size)
    chunk = max(1, total // 9)
    for start in range(0, total, chunk):
        if len(recorded):
            slots = rng.permutation(len(recorded))[: size // 4 + 1]
            recorded.update(slots, recorded.kind.random_priorities(rng, len(slots)))
        recorded.extend(min(chunk, total - start))


def mostly_equal(recorded, size, rng):
    recorded.extend(size)
    few = rng.permutation(size)[: size // 10]
    recorded.update(few, recorded.kind.random_priorities(rng, len(few)))
    recorded.update(few[: len(few) // 2], 1.25)


def pooled(expected, observed, least):
    """Merges cells, the most likely first, until each expects ``least`` draws."""
    order = np.argsort(-expected, kind="stable")
    starts, gathered = [], least
    for at, value in enumerate(expected[order].tolist()):
        if gathered >= least:
            starts.append(at)
            gathered = 0.0
        gathered += value
    if gathered < least and len(starts) > 1:
        starts.pop()
    return tuple(np.add.reduceat(values[order], starts) for values in (expected, observed))


def assert_drawn_from(slots, probabilities, alarm=ALARM):
    probabilities = np.asarray(probabilities)
    assert slots.min() >= 0
    assert slots.max() < len(probabilities)
    assert abs(probabilities.sum() - 1) < 1e-9
    observed = np.bincount(slots, minlength=len(probabilities)).astype(float)
    expected = probabilities / probabilities.sum() * len(slots)
    # Many small cells detect single wrong slots; few large ones detect a general slope.
    for least in (20, len(slots) / 50):
        expected, observed = pooled(expected, observed, least)
        if len(expected) > 1:
            assert stats.chisquare(observed, expected).pvalue > alarm
