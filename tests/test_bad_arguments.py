"""Random arguments to all public functions either work or raise an error and change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    RankPrioritizedSampler,
    VMFSampler,
    VMFUncertainty,
    directional,
)

CLEAR = (TypeError, ValueError, IndexError, RuntimeError, KeyError)
NAN, INF = math.nan, math.inf
ROWS = 6
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, 2.72, 3.0, 1e-50, 1e39, NAN, INF, -INF])
DTYPES = st.sampled_from([torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
SHAPES = st.lists(st.integers(0, 3), max_size=4)


@st.composite
def tensors(draw, shapes=SHAPES, dtypes=DTYPES):
    shape, dtype = draw(shapes), draw(dtypes)
    count = math.prod(shape)
    few = draw(st.lists(FLOATS | st.floats(0.5, 2.5), min_size=1, max_size=4))
    values = torch.tensor((few * count)[:count], dtype=torch.float64).reshape(shape)
    if not dtype.is_floating_point:
        values = values.nan_to_num(0, 9, -9).clamp(-9, 9)
    return values.to(dtype)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 8) | st.sampled_from([10**30, -(10**400)]),
    FLOATS,
    st.sampled_from(["", "1.5", "rank", "first", "é", b"1", [], {}, (), [1], [NAN], object(), int]),
    tensors(),
)


def attempt(call, *args, **kwargs):
    """Returns the result of a call, or None if it raises an error with a message."""
    try:
        return call(*args, **kwargs)
    except CLEAR as error:
        message = str(error)
    assert message
    return None


def make_buffer():
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(8),
        critic_sampler=RankPrioritizedSampler(),
        actor_sampler=VMFSampler(),
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
    )
    rows = torch.arange(float(ROWS)).unsqueeze(-1)
    index = buffer.extend(TensorDict({"observation": rows, "next": {"reward": rows}}, [ROWS]))
    buffer.update_priority(index, torch.linspace(0, 3, ROWS))
    buffer.update_actor_priority(index, torch.linspace(1, 2.5, ROWS))
    return buffer


def ones(batch):
    return torch.ones(len(batch))


def state_of(buffer):
    samplers = [buffer.critic_sampler.state_dict(), buffer.actor_sampler.state_dict()]
    return repr([state | {"priorities": state["priorities"].tolist()} for state in samplers]), len(
        buffer
    )


def assert_sound(buffer):
    for sampler in (buffer.critic_sampler, buffer.actor_sampler):
        priorities, probabilities = sampler.state_dict()["priorities"], sampler.probabilities()
        assert priorities.isfinite().all()
        assert (priorities >= 0).all()
        assert probabilities.sum().item() == pytest.approx(1)
        assert (probabilities > 0).all()
    assert (buffer.actor_sampler.state_dict()["priorities"] <= math.e * (1 + 1e-6)).all()


@settings(max_examples=40)
@given(st.sampled_from(["sample", "sample_actor", "pool"]), JUNK, JUNK)
@example("sample_actor", -1, None)
@example("sample", -1, None)
def test_a_batch_has_the_requested_size_or_raises(way, size, keys):
    buffer = make_buffer()
    sample = CandidatePool(buffer, 5, score=ones).sample if way == "pool" else getattr(buffer, way)
    before = state_of(buffer)
    arguments = {} if way == "sample" else {"keys": keys}
    batch = attempt(sample, size, **arguments)
    if batch is not None:
        assert batch.batch_size == (4 if size is None else int(size),)
        assert batch["index"].max() < ROWS if len(batch) else True
    assert state_of(buffer) == before
    assert_sound(buffer)


GRADIENTS = JUNK | tensors(st.lists(st.integers(1, 3), min_size=2, max_size=3))


@settings(max_examples=80)
@given(GRADIENTS, JUNK | st.just(0))
@example(torch.ones(2, 3), -1)
@example(torch.ones(0, 3), 0)
def test_directions_give_numbers_in_their_ranges_or_are_rejected(gradients, used):
    lengths = attempt(directional.resultant_length, gradients)
    mean = attempt(directional.mean_direction, gradients)
    factor = attempt(directional.sampling_factor, gradients, used)
    statistics = attempt(VMFUncertainty.from_gradients, gradients, used)
    assert (lengths is None) == (mean is None)
    if lengths is not None:
        assert ((lengths >= 0) & (lengths <= 1)).all()
        assert ((mean.norm(dim=-1) - (lengths > 0).to(mean.dtype)).abs() < 2e-3).all()
        if gradients.shape[-1] > 0:
            assert directional.concentration(lengths, gradients.shape[-1]).isfinite().all()
    for values in (factor, None if statistics is None else statistics["vmf", "factor"]):
        if values is not None:
            assert ((values > 0.36) & (values < 2.72)).all()
            assert isinstance(used, torch.Tensor) or used >= 0
