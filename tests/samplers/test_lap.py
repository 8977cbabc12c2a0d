"""The sampler of loss-adjusted prioritized replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from torchrl_vmfer import ActorCriticReplayBuffer, InverseTDSampler, LAPSampler


def filled(sampler, td_error) -> ActorCriticReplayBuffer:
    size = len(td_error)
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(100),
        critic_sampler=sampler,
        batch_size=200_000,
        generator=torch.Generator().manual_seed(0),
    )
    index = buffer.extend(TensorDict({"observation": torch.randn(size, 2)}, [size]))
    buffer.update_priority(index, torch.as_tensor(td_error))
    return buffer


def test_draws_follow_the_published_probabilities():
    td_error = [0.0, 0.3, 1.0, 2.0, 40.0]
    buffer = filled(LAPSampler(), td_error)
    priorities = [max(abs(each), 1) ** 0.4 for each in td_error]
    expected = np.array(priorities) / sum(priorities)
    np.testing.assert_allclose(buffer.critic_sampler.probabilities(), expected, rtol=1e-6)
    counts = np.bincount(buffer.sample()["index"], minlength=5)
    # Five standard deviations of a binomial distribution.
    deviation = np.sqrt(200_000 * expected * (1 - expected))
    assert (abs(counts - 200_000 * expected) < 5 * deviation).all()


def test_batches_have_no_importance_weights():
    assert "priority_weight" not in filled(LAPSampler(), [0.5, 3.0]).sample()


def test_new_transitions_have_the_largest_error_so_far():
    buffer = filled(LAPSampler(exponent=1.0), [9.0, 3.0])
    buffer.update_priority(torch.tensor([0]), torch.tensor([1.0]))
    buffer.extend(TensorDict({"observation": torch.randn(1, 2)}, [1]))
    expected = torch.tensor([1, 3, 9], dtype=torch.float64) / 13
    torch.testing.assert_close(buffer.critic_sampler.probabilities(), expected)


def test_buffer_passes_the_td_error_of_a_loss():
    buffer = filled(LAPSampler(exponent=1.0), [1.0, 1.0])
    batch = TensorDict({"index": torch.arange(2), "td_error": torch.tensor([1.0, 3.0])}, [2])
    buffer.update_tensordict_priority(batch)
    assert buffer.critic_sampler.probabilities().tolist() == [0.25, 0.75]


def test_state_is_not_that_of_the_inverse_sampler():
    state = filled(LAPSampler(), [1.0, 5.0]).critic_sampler.state_dict()
    restored = LAPSampler()
    restored.load_state_dict(state)
    assert restored.default_priority == 5
    with pytest.raises(ValueError, match="not saved by InverseTDSampler but by LAPSampler"):
        InverseTDSampler().load_state_dict(state)
