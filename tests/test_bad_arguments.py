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
    HindsightReplayBuffer,
    RankPrioritizedSampler,
    VMFSampler,
    VMFUncertainty,
    directional,
)

CLEAR = (TypeError, ValueError, IndexError, RuntimeError, KeyError)
NAN, INF = math.nan, math.inf
ROWS = 6
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, 2.72, 3.0, 1e-50, 1e39, NAN, INF, -INF])
DTYPES = st.sampled_from(
    [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]
)
SHAPES = st.lists(st.integers(0, 3), max_size=4)


@st.composite
def tensors(draw, shapes=SHAPES, dtypes=DTYPES):
    shape, dtype = draw(shapes), draw(dtypes)
    count = math.prod(shape)
    few = draw(st.lists(FLOATS | st.floats(0.5, 2.5), min_size=1, max_size=4))
    values = torch.tensor((few * count)[:count], dtype=torch.float64).reshape(shape)
    if not (dtype.is_floating_point or dtype.is_complex):
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


def rows(count=ROWS):
    step = torch.arange(float(count)).unsqueeze(-1)
    after = {"achieved_goal": step + 1, "reward": -torch.ones(count, 1), "done": step == count - 1}
    data = {"observation": step, "desired_goal": torch.full((count, 1), 9.0), "next": after}
    return TensorDict(data, [count])


def reward(achieved, desired):
    return -(achieved - desired).abs().squeeze(-1)


def make_buffer(mode="uncertainty", hindsight=False):
    buffer_type = HindsightReplayBuffer if hindsight else ActorCriticReplayBuffer
    buffer = buffer_type(
        storage=LazyTensorStorage(8),
        critic_sampler=RankPrioritizedSampler(),
        actor_sampler=VMFSampler(mode),
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
        **({"reward_fn": reward} if hindsight else {}),
    )
    index = buffer.extend(rows())
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
        keys, probabilities = sampler.state_dict()["priorities"], sampler.probabilities()
        assert keys.isfinite().all()
        assert (keys >= 0).all()
        assert probabilities.sum().item() == pytest.approx(1)
        assert (probabilities > 0).all()
    assert (buffer.actor_sampler.state_dict()["priorities"] <= math.e * (1 + 1e-6)).all()


@settings(max_examples=60)
@given(
    st.booleans(), st.booleans(), JUNK | st.integers(-2, 9).map(lambda i: torch.tensor([i])), JUNK
)
@example(True, False, torch.tensor([0, 1]), torch.tensor([1.0, NAN]))
def test_priorities_are_stored_completely_or_not_at_all(hindsight, for_actor, index, priority):
    buffer = make_buffer(hindsight=hindsight)
    update = buffer.update_actor_priority if for_actor else buffer.update_priority
    before = state_of(buffer)
    accepted = attempt(lambda: update(index, priority) or True)
    assert accepted or state_of(buffer) == before
    assert_sound(buffer)


@settings(max_examples=40)
@given(st.booleans(), st.sampled_from(["sample", "sample_actor", "pool"]), JUNK, JUNK)
@example(False, "sample_actor", -1, None)
@example(False, "sample", -1, None)
def test_a_batch_has_the_requested_size_or_raises(hindsight, way, size, keys):
    buffer = make_buffer(hindsight=hindsight)
    sample = CandidatePool(buffer, 5, score=ones).sample if way == "pool" else getattr(buffer, way)
    before = state_of(buffer)
    arguments = {} if way == "sample" else {"keys": keys}
    batch = attempt(sample, size, **arguments)
    if batch is not None:
        assert batch.batch_size == (4 if size is None else int(size),)
        assert batch["index"].max() < ROWS if len(batch) else True
    assert state_of(buffer) == before
    assert_sound(buffer)


HINDSIGHT_ARGUMENTS = (
    *("reward_fn", "her_ratio", "strategy", "goal_key", "achieved_goal_key", "reward_key"),
    *("done_key", "trajectory_key"),
)


@settings(max_examples=40)
@given(st.sampled_from(HINDSIGHT_ARGUMENTS), JUNK)
def test_a_hindsight_buffer_draws_or_reports_the_error(name, value):
    arguments = {"reward_fn": reward, "storage": LazyTensorStorage(8), "batch_size": 4}
    buffer = attempt(HindsightReplayBuffer, **(arguments | {name: value}))
    if buffer is not None:
        buffer.extend(rows())
        batch = attempt(buffer.sample)
        assert batch is None or batch["next", "reward"].isfinite().all()
        assert buffer.actor_sampler.probabilities().sum().item() == pytest.approx(1)


@settings(max_examples=40)
@given(st.sampled_from(["priorities", "max_priority", "beta", "sampler"]), st.booleans(), JUNK)
@example("max_priority", False, 1e300)
def test_a_state_is_loaded_completely_or_not_at_all(entry, for_actor, value):
    buffer = make_buffer()
    state = buffer.state_dict()
    part = state["actor_sampler" if for_actor else "critic_sampler"]
    part |= {"priorities": torch.ones(ROWS), entry: value}
    before = state_of(buffer)
    accepted = attempt(lambda: buffer.load_state_dict(state) or True)
    assert accepted or state_of(buffer) == before
    buffer.extend(rows(2))
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
        assert mean.isfinite().all()
    for values in (factor, None if statistics is None else statistics["vmf", "factor"]):
        if values is not None:
            assert ((values > 0.36) & (values < 2.72)).all()
            assert isinstance(used, torch.Tensor) or used >= 0


LOSS_ARGUMENTS = st.sampled_from(["num_target_critics", "actor_noise", "actor_noise_clip"])


@settings(max_examples=20)
@given(LOSS_ARGUMENTS, JUNK)
@example("actor_noise", INF)
def test_a_loss_is_valid_or_not_constructed(td3, make_batch, name, value):
    loss = attempt(td3.build, **{name: value})
    if loss is not None:
        factor = loss.actor_loss(make_batch(3))[1]["vmf_factor"]
        assert ((factor > 0.36) & (factor < 2.72)).all()


@settings(max_examples=10)
@given(
    key=st.sampled_from(["observation", "action", ("next", "reward"), ("next", "observation")]),
    entry=tensors(st.lists(st.integers(0, 5), max_size=2).map(lambda shape: [3, *shape]))
    | st.none(),
)
@example(key="observation", entry=torch.full((3, 5), NAN))
@example(key="observation", entry=torch.full((3, 5), INF))
def test_an_unusual_batch_does_not_change_the_networks(algorithm, make_batch, key, entry):
    loss = algorithm.build()
    before = [parameter.clone() for parameter in loss.parameters()]
    batch = make_batch(3)
    if entry is None:
        del batch["observation"]
    else:
        batch[key] = entry
        attempt(algorithm.critic_loss, loss, batch)
    result = attempt(loss.actor_loss, batch)
    measured = attempt(VMFUncertainty(loss), batch.copy())
    factors = [] if result is None else [result[1]["vmf_factor"]]
    factors += [] if measured is None else [measured["vmf", "factor"]]
    for factor in factors:
        assert ((factor > 0.36) & (factor < 2.72)).all()
    for parameter, old in zip(loss.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    assert loss.actor_loss(make_batch(3))[1]["vmf_factor"].isfinite().all()
