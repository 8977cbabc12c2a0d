"""A VMFSampler that is never given a factor draws uniformly and warns."""

import warnings

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer, CandidatePool, RankPrioritizedSampler, VMFSampler

MANY = 250
MESSAGE = r"never given a factor.*update_actor_priority.*update_priority"


def rows(count=20):
    return TensorDict({"observation": torch.randn(count, 3)}, [count])


def plain(sampler):
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), sampler=sampler, batch_size=4)
    buffer.extend(rows())
    return buffer


def draw(buffer, count=MANY, method="sample"):
    for _ in range(count):
        getattr(buffer, method)()


@pytest.fixture
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("options", [{}, {"mode": "rank"}, {"pool_size": 8}])
def test_a_plain_buffer_warns_once(options):
    buffer = plain(VMFSampler(**options))
    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        draw(buffer, 3 * MANY)
    assert len(caught) == 1


def test_the_buffer_with_two_samplers_warns_once_and_only_for_the_actor():
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(50), batch_size=4)
    buffer.extend(rows())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(buffer)
        CandidatePool(buffer, 8, score=lambda batch: torch.ones(len(batch))).sample()
    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        draw(buffer, 3 * MANY, "sample_actor")
    assert len(caught) == 1


@pytest.mark.usefixtures("silent")
def test_one_factor_prevents_the_warning():
    buffer = plain(VMFSampler())
    draw(buffer, 50)
    buffer.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    draw(buffer)


@pytest.mark.usefixtures("silent")
def test_writes_and_a_few_batches_do_not_warn():
    buffer = plain(VMFSampler())
    for _ in range(MANY):
        buffer.extend(rows(2))
    draw(buffer, 50)


@pytest.mark.usefixtures("silent")
def test_critic_samplers_without_priorities_do_not_warn():
    draw(plain(RankPrioritizedSampler()))


@pytest.mark.usefixtures("silent")
def test_loaded_factors_prevent_the_warning():
    source = plain(VMFSampler())
    source.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    buffer = plain(VMFSampler())
    buffer.sampler.load_state_dict(source.sampler.state_dict())
    draw(buffer)


def test_a_loaded_state_without_factors_and_a_reset_do_not_prevent_the_warning():
    buffer = plain(VMFSampler())
    buffer.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    buffer.sampler.load_state_dict(plain(VMFSampler()).sampler.state_dict())
    with pytest.warns(UserWarning, match=MESSAGE):
        draw(buffer)
    buffer.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    buffer.empty()
    buffer.extend(rows())
    with pytest.warns(UserWarning, match=MESSAGE):
        draw(buffer)
