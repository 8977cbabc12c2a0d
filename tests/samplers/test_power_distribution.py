"""P ∝ priority^power against brute force, over any history of changes."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import seeded
from torchrl_vmfer.samplers.distributions import PowerDistribution, RankDistribution

# Up to one level of sums, two levels, and three; a draw of 200 slots uses all of them.
SIZES = [1, 3, 4096, 4097, 65_536, 70_000]


def reference(priorities, power):
    weights = [float(priority) ** power for priority in priorities]
    total = math.fsum(weights)
    return [w / total for w in weights] if total else [1 / len(weights)] * len(weights)


def draw_many(distribution, priorities, batches=1000, count=200, seed=0):
    generator = seeded(seed)
    draws = [distribution.draw(priorities, count, generator) for _ in range(batches)]
    return np.concatenate(draws)


@pytest.mark.parametrize("power", [-7.0, -1.0, 0.0, 0.4, 1.0, 7.0])
@pytest.mark.parametrize("size", SIZES)
def test_probabilities_and_draws_equal_the_reference(size, power):
    rng = np.random.default_rng(size)
    priorities = rng.uniform(0.5, 3, size).astype(np.float32)
    distribution = PowerDistribution(power)
    expected = np.array(reference(priorities, power))
    np.testing.assert_allclose(distribution.probabilities(priorities), expected, rtol=1e-12)
    assert_drawn_from(draw_many(distribution, priorities), expected)


operations = st.lists(
    st.tuples(st.just("resize"), st.integers(1, 60), st.integers(0, 9))
    | st.tuples(st.just("set"), st.integers(0, 59), st.integers(0, 9))
    | st.tuples(st.just("draw"), st.integers(0, 30), st.integers(0, 99)),
    max_size=40,
)


@settings(max_examples=60)
@given(operations, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from([1, 2000]))
def test_any_order_of_changes_and_draws(history, power, scale):
    """With ``scale``, each step of the history changes many slots of a tree with three levels."""
    distribution, priorities = PowerDistribution(power), np.ones(scale, np.float32)
    for kind, at, value in history:
        if kind == "resize":
            length = at * scale
            if length > len(priorities):
                distribution.mark(np.arange(len(priorities), length))
                new = np.full(length - len(priorities), value, np.float32)
                priorities = np.append(priorities, new)
            else:
                distribution.mark_all()
                priorities = priorities[:length].copy()
        elif kind == "set":
            slots = np.unique(np.arange(at, at + 5 * scale, 7) % len(priorities))
            priorities[slots] = value
            distribution.mark(slots)
        else:
            draws = distribution.draw(priorities, at, seeded(value))
            rebuilt = PowerDistribution(power).draw(priorities, at, seeded(value))
            np.testing.assert_array_equal(draws, rebuilt)
            allowed = np.array(reference(priorities, power)) > 0
            assert allowed[draws].all()
    expected = reference(priorities, power)
    np.testing.assert_allclose(distribution.probabilities(priorities), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [5, 5000, 70_000])
@pytest.mark.parametrize("at", ["first", "last", "middle"])
def test_a_single_positive_priority_is_always_drawn(size, at):
    slot = {"first": 0, "last": size - 1, "middle": size // 2}[at]
    priorities = np.zeros(size, np.float32)
    priorities[slot] = 1e-30
    assert (draw_many(PowerDistribution(2.0), priorities, 20) == slot).all()


@pytest.mark.parametrize("size", [5, 70_000])
def test_priorities_that_are_all_zero_are_drawn_uniformly(size):
    priorities = np.zeros(size, np.float32)
    distribution = PowerDistribution(1.0)
    np.testing.assert_allclose(distribution.probabilities(priorities), 1 / size)
    assert_drawn_from(draw_many(distribution, priorities), np.full(size, 1 / size))


def test_weights_of_very_different_size_leave_no_rounding_errors_behind():
    priorities = np.ones(70_000, np.float32)
    distribution = PowerDistribution(7.0)
    distribution.draw(priorities, 1, None)
    for _ in range(20):
        for value in (1e38, 1e-38, 1.0):
            priorities[500:600] = value
            distribution.mark(np.arange(500, 600))
            distribution.draw(priorities, 1, None)
    np.testing.assert_array_equal(distribution.probabilities(priorities), 1 / 70_000)
    assert_drawn_from(draw_many(distribution, priorities), np.full(70_000, 1 / 70_000))


def test_no_slots_are_drawn_for_a_count_of_zero():
    for size in (3, 70_000):
        assert PowerDistribution(1.0).draw(np.ones(size, np.float32), 0, None).shape == (0,)


@pytest.mark.parametrize("distribution", [PowerDistribution(2.0), RankDistribution()])
def test_probabilities_change_nothing_that_a_drawing_thread_reads(distribution):
    priorities = np.arange(1, 9001, dtype=np.float32)
    distribution.draw(priorities, 4, seeded(0))
    priorities[7] = 0.5
    distribution.mark(np.array([7]))
    before = pickle.dumps(vars(distribution))
    distribution.probabilities(priorities)
    assert pickle.dumps(vars(distribution)) == before
