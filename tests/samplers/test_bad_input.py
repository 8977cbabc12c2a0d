"""Bad priorities, indices and arguments raise a clear error and change nothing."""

import math
import re

import pytest
import torch

from helpers.sampler_buffers import EVERY, filled_buffer, grid, grid_buffer, seeded
from torchrl_vmfer import (
    GradientNormSampler,
    InverseTDSampler,
    LAPSampler,
    OldSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)

NAN, INF = math.nan, math.inf
VMF_SAMPLERS = ["uncertainty", "rank", "smoothed", "power", "pool"]
OTHERS = ["rank_prioritized", "lap", "inverse_td", "gradient_norm", "custom"]


def make_buffer(name):
    """Makes a buffer with ten transitions of different priorities."""
    buffer = filled_buffer(EVERY[name](), batch_size=64, generator=seeded(0))
    buffer.update_priority(torch.arange(10), torch.linspace(1.0, 2.5, 10))
    return buffer


@pytest.fixture(params=[*VMF_SAMPLERS, *OTHERS])
def buffer(request):
    return make_buffer(request.param)


def observable_state(buffer):
    """Returns the full state and the next draws from a known generator, which is restored."""
    state = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in buffer.sampler.state_dict().items()
    }
    before = buffer._rng.get_state()
    draws = buffer.sample()
    buffer._rng.set_state(before)
    return state, before.tolist(), {key: value.tolist() for key, value in draws.items()}


def assert_rejected(buffer, index, value, error, message):
    before = observable_state(buffer)
    with pytest.raises(error, match=message):
        buffer.update_priority(index, value)
    assert observable_state(buffer) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 0.0, 1e-50, -1e-30, 2.72, 1e30], ids=str)
@pytest.mark.parametrize("name", VMF_SAMPLERS)
def test_a_bad_factor_is_reported_with_its_index(name, bad, dtype):
    value = torch.tensor([2.0, 1.5, bad, 1.2], dtype=dtype)
    message = rf"Index 5 .*{re.escape(str(value[2].item()))}.*e\]"
    assert_rejected(make_buffer(name), torch.tensor([9, 0, 5, 3]), value, ValueError, message)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1e-30, -1.0, 1e39], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_a_bad_priority_is_reported_with_its_index(name, bad):
    value = torch.tensor([2.0, 1.5, bad, 1.2], dtype=torch.float64)
    message = rf"Index 5 .*{re.escape(str(bad))}"
    assert_rejected(make_buffer(name), torch.tensor([9, 0, 5, 3]), value, ValueError, message)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        ([1, 8, 0, 3], [1.0, -2.0, NAN, INF], r"Index 8 .*-2\.0"),  # the first of several
        ([4, 7, 7], [1.0, NAN, 2.0], "Index 7 .*nan"),  # although a later one is valid
        ([4, -1, 7, 6], [1.0, NAN, 2.0, -3.0], r"Index 6 .*-3\.0"),  # -1 was not stored
        ([6, 2, 4], NAN, "Index 6 .*nan"),
        (6, NAN, "Index 6 .*nan"),
    ],
)
def test_the_reported_index_is_that_of_the_first_bad_value(buffer, index, value, message):
    assert_rejected(buffer, torch.tensor(index), torch.tensor(value), ValueError, message)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", VMF_SAMPLERS)
def test_the_bound_e_is_accepted_in_every_precision_and_three_in_none(name, dtype):
    buffer = make_buffer(name)
    e = torch.exp(torch.ones(()).to(dtype))
    for _ in range(300):  # a running average gets as close to the bound as possible
        buffer.update_priority(torch.tensor([3, 4]), e.expand(2))
    state = buffer.sampler.state_dict()
    assert state["priorities"][3].item() == pytest.approx(math.e, rel=1e-6)
    assert state["priorities"][3].item() <= math.e * (1 + 2**-22)
    make_buffer(name).sampler.load_state_dict(state)
    three = torch.tensor([3.0], dtype=dtype)
    assert_rejected(buffer, torch.tensor([2]), three, ValueError, r"Index 2 .*3\.0")


@pytest.mark.parametrize("power", [100, -100])
@pytest.mark.parametrize("pool_size", [None, 4])
def test_a_factor_whose_power_overflows_is_rejected(power, pool_size):
    sampler = VMFSampler(power=power, pool_size=pool_size)
    buffer = filled_buffer(sampler, batch_size=8, generator=seeded(0))
    buffer.update_priority(torch.arange(3), 0.01)
    value = torch.tensor([2.0, 0.001])
    message = r"Index 2 was given 0\.001.*.*with power="
    assert_rejected(buffer, torch.tensor([1, 2]), value, ValueError, message)
    with pytest.raises(ValueError, match=r"initial_factor must .* got 0\.001"):
        VMFSampler(power=power, initial_factor=0.001)


@pytest.mark.parametrize("shape", [(2,), (4,), (0,), (3, 2), (1, 4)], ids=str)
def test_a_wrong_number_of_values_is_rejected(buffer, shape):
    value = torch.ones(shape)
    message = rf"Got {value.numel()} values of shape {re.escape(str(list(shape)))} for 3 indices"
    assert_rejected(buffer, torch.tensor([1, 2, 3]), value, ValueError, message)


@pytest.mark.parametrize("bad", [10, 16, -2, -11, 2**40, 2**62, -(2**62)])
def test_an_index_out_of_range_is_reported(buffer, bad):
    message = rf"Index {bad} is outside the 10 slots"
    value = torch.tensor([1.5, 1.5, NAN, 1.5])
    assert_rejected(buffer, torch.tensor([3, 9, bad, 99]), value, IndexError, message)
    assert_rejected(buffer, bad, 1.5, IndexError, message)


def test_a_bad_value_at_a_coordinate_is_rejected():
    buffer = grid_buffer(VMFSampler(), 3, 4, batch_size=64, generator=seeded(0))
    buffer.extend(grid(0, 3, 4))
    index, value = torch.tensor([[1, 1], [2, 3]]), torch.tensor([1.5, NAN])
    assert_rejected(buffer, index, value, ValueError, "Index 11 .*nan")


@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-300, 1e-50, 1e-42])
@pytest.mark.parametrize("name", OTHERS)
def test_zero_tiny_and_large_priorities_are_valid(name, tiny):
    buffer = make_buffer(name)
    value = torch.tensor([tiny, 3e38], dtype=torch.float64)
    buffer.update_priority(torch.tensor([1, 2]), value)
    probability = buffer.sampler.probabilities()
    assert probability.isfinite().all()
    best, worst = (1, 2) if name == "inverse_td" else (2, 1)
    assert probability[best] == probability.max()
    assert probability[worst] == probability.min()
    buffer.sample()


@pytest.mark.parametrize(
    ("sampler_type", "arguments"),
    [
        *((VMFSampler, {"mode": bad}) for bad in ("", "ranks", None, 1)),
        *((VMFSampler, {"initial_factor": bad}) for bad in (0, -1.0, 2.72, 1e-50, NAN, INF, -INF)),
        *((VMFSampler, {"smoothing": bad}) for bad in (-0.1, 1.0, 2, NAN, INF)),
        *((VMFSampler, {"power": bad}) for bad in (-100.5, 101, NAN, INF, "8", None)),
        *((VMFSampler, {"pool_size": bad}) for bad in (0, -1, 2.5, True, "8")),
        *((LAPSampler, {"exponent": bad}) for bad in (-0.1, 7.5, NAN, INF)),
        *((InverseTDSampler, {"floor": bad}) for bad in (0, -1.0, NAN, INF)),
        *((GradientNormSampler, {"power": bad}) for bad in (-1.0, 8, NAN, INF)),
        *((RecentSampler, {"decay": bad}) for bad in (0, -0.5, 1.5, NAN)),
        *((RecentSampler, {"min_size": bad}) for bad in (0, 2.5, True)),
        *((RecentSampler, {"cycle": bad}) for bad in (0, -1, 10.0)),
        *((OldSampler, {"exponent": bad}) for bad in (0, -1, 101, NAN)),
        *((RankPrioritizedSampler, {"alpha": bad}) for bad in (-0.1, NAN, INF)),
        *((RankPrioritizedSampler, {"beta": bad}) for bad in (-0.1, NAN, INF)),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_reported(sampler_type, arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=rf"{name} must .*got {re.escape(repr(value))}"):
        sampler_type(**arguments)


def test_a_power_of_a_rank_is_rejected():
    with pytest.raises(ValueError, match=r"power must be 1 with mode='rank', got 2"):
        VMFSampler("rank", power=2)


@pytest.mark.parametrize("value", [math.e, 1e-6, 1])
def test_initial_factors_within_the_bounds_are_accepted(value):
    sampler = filled_buffer(VMFSampler(initial_factor=value), 4).sampler
    assert sampler.state_dict()["priorities"].tolist() == pytest.approx([value] * 4)
