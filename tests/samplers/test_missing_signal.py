"""A sampler that never receives its signal draws uniformly and warns once."""

import warnings

import pytest
import torch

from helpers.sampler_buffers import filled_buffer, rows
from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    GradientNormSampler,
    InverseTDSampler,
    OldSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)


class Custom(GradientNormSampler):
    signal = "surprise"


def num_warnings(draw, message="never given a", count=250):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(count):
            draw()
    for warning in caught:
        assert message in str(warning.message)
        assert "update_actor_priority" in str(warning.message)
    return len(caught)


def plain(sampler, scored=False):
    buffer = filled_buffer(sampler, batch_size=4)
    if scored:
        buffer.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    return buffer


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (VMFSampler(), "never given a factor: they were uniform."),
        (VMFSampler("rank"), 'metadata["vmf_factor"]'),
        (VMFSampler(pool_size=8), "never given a factor"),
        (InverseTDSampler(), "td_error.abs()"),
        (GradientNormSampler(), 'metadata["vmf_gradient_norm"]'),
        (Custom(), "never given a surprise"),
    ],
    ids=str,
)
def test_a_missing_signal_is_named_once(sampler, message):
    assert num_warnings(plain(sampler).sample, message, 750) == 1


def test_the_buffer_with_two_samplers_warns_only_for_the_actor():
    buffer = plain(RecentSampler())
    buffer = ActorCriticReplayBuffer(storage=buffer.storage, batch_size=4)
    assert num_warnings(buffer.sample) == 0
    pool = CandidatePool(buffer, 8, score=lambda batch: torch.ones(len(batch)))
    assert num_warnings(pool.sample) == 0
    assert num_warnings(buffer.sample_actor) == 1


@pytest.mark.parametrize("sampler", [RankPrioritizedSampler(), RecentSampler(), OldSampler()])
def test_other_samplers_do_not_warn(sampler):
    assert num_warnings(plain(sampler).sample) == 0


def test_one_factor_prevents_the_warning_and_writes_do_not_count():
    buffer = plain(VMFSampler())
    assert num_warnings(lambda: buffer.extend(rows(0, 2))) == 0
    assert num_warnings(buffer.sample, count=99) == 0
    buffer.update_priority(torch.tensor([3]), torch.tensor([2.0]))
    assert num_warnings(buffer.sample) == 0


def test_loaded_factors_prevent_the_warning_and_a_state_without_factors_does_not():
    scored, unscored = plain(VMFSampler(), scored=True), plain(VMFSampler())
    states = [buffer.sampler.state_dict() for buffer in (scored, unscored)]
    unscored.sampler.load_state_dict(states[0])
    assert num_warnings(unscored.sample) == 0
    scored.sampler.load_state_dict(states[1])
    assert num_warnings(scored.sample) == 1
    unscored.empty()
    unscored.extend(rows(0, 5))
    assert num_warnings(unscored.sample) == 1
