"""Draws of the samplers against probabilities computed from a plain record of the writes."""

import itertools
import math

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import (
    POWERS,
    PRIORITIZED,
    RANK,
    UNCERTAINTY,
    RecordedBuffer,
    assert_drawn_from,
    each,
    full,
    mostly_equal,
    wrapped,
)
from torchrl_vmfer import VMFSampler

SIZES = [1, 7, 100, 1024, 100_000]


def partly_filled(recorded, size, rng):
    recorded.extend(size)
    recorded.update(np.arange(size), recorded.kind.random_priorities(rng, size))


def updated_with_duplicates(recorded, size, rng):
    recorded.extend(size)
    for step in range(200):
        slots = rng.integers(size, size=rng.integers(1, 65))
        priorities = recorded.kind.random_priorities(rng, len(slots))
        if step % 5 == 3:
            recorded.update(slots, float(priorities[0]))
        elif step % 5 == 4:
            recorded.update(int(slots[0]), float(priorities[0]))
        else:
            recorded.update(
                np.concatenate((slots, slots[:3])), np.concatenate((priorities, priorities[-3:]))
            )
        if step % 3 == 0:
            recorded.draw(8)  # updates the order of the priorities in between


SITUATIONS = [partly_filled, full, wrapped, updated_with_duplicates, mostly_equal]
CASES = [
    (kind, situation) for kind in (UNCERTAINTY, RANK, PRIORITIZED[0]) for situation in SITUATIONS
]
CASES += [(kind, situation) for kind in PRIORITIZED[1:] for situation in (wrapped, mostly_equal)]
CASES += [(kind, situation) for kind in POWERS[:3] for situation in (wrapped, mostly_equal)]
CASES += [(kind, full) for kind in POWERS[3:]]


def sizes_and_cases():
    """All sizes for one sampler of each type; some of them are slow for its other exponents."""
    for (kind, situation), size in itertools.product(CASES, SIZES):
        is_slow = size in (7, 1024) and kind not in (UNCERTAINTY, RANK, PRIORITIZED[0])
        name = f"{kind.name}-{situation.__name__}-{size}"
        marks = pytest.mark.slow if is_slow else ()
        yield pytest.param(kind, situation, size, id=name, marks=marks)


@pytest.mark.parametrize(("kind", "situation", "size"), sizes_and_cases())
def test_draws_follow_the_record_of_writes_and_updates(kind, size, situation):
    capacity = 2 * size if situation is partly_filled else size
    recorded = RecordedBuffer(kind, capacity, seed=size)
    situation(recorded, size, np.random.default_rng(size))
    assert len(recorded) == len(recorded.buffer) == size
    reported = recorded.sampler.probabilities()
    assert reported.dtype == torch.float64
    np.testing.assert_allclose(reported, recorded.probabilities, rtol=1e-7)
    slots = recorded.draw()
    assert_drawn_from(slots, recorded.probabilities)
    assert_drawn_from(slots, reported)


@each([UNCERTAINTY, RANK, POWERS[0], PRIORITIZED[0]])
def test_positions_in_a_batch_are_independent_and_identically_distributed(kind):
    recorded = RecordedBuffer(kind, 7, seed=8)
    recorded.extend(7)
    recorded.update(np.arange(7), np.array([1, 2.7, 1.3, 2, 1, 2.2, 1.1], np.float32))
    batches = np.stack([recorded.draw(4) for _ in range(5000)])
    for place in range(4):
        assert_drawn_from(batches[:, place], recorded.probabilities)
    for first, second in ((0, 1), (0, 3), (2, 3)):
        pairs = 7 * batches[:, first] + batches[:, second]
        assert_drawn_from(pairs, np.outer(recorded.probabilities, recorded.probabilities).ravel())


TINY = {
    "all at 1e-6": lambda rng: np.full(500, 1e-6),
    "around 1e-6": lambda rng: rng.uniform(1e-6, 1e-5, 500),
    "one of 1e-6 to e": lambda rng: np.geomspace(1e-6, math.e, 500),
    "one high": lambda rng: np.append(np.full(499, 1e-6), 1e-3),
    # Rejection delivers about half of these draws, inversion the rest.
    "around 0.1": lambda rng: rng.uniform(0.02, 0.15, 500),
}


@pytest.mark.parametrize("factors", TINY)
@pytest.mark.parametrize("batch_size", [64, 300_000])
def test_factors_far_below_one_are_drawn_exactly(factors, batch_size):
    recorded = RecordedBuffer(UNCERTAINTY, 500, seed=10, sampler=VMFSampler(initial_factor=1e-6))
    recorded.extend(500)
    np.testing.assert_allclose(recorded.sampler.state_dict()["priorities"], 1e-6, rtol=1e-7)
    priorities = TINY[factors](np.random.default_rng(10)).astype(np.float32)
    recorded.update(np.arange(500), priorities)
    batches = 300 if batch_size == 64 else 1
    slots = np.concatenate([recorded.draw(batch_size) for _ in range(batches)])
    np.testing.assert_allclose(recorded.sampler.probabilities(), recorded.probabilities, rtol=1e-9)
    assert_drawn_from(slots, recorded.probabilities)
