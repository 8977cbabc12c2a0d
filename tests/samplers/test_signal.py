"""The sampler by the rank of any signal, against its definition."""

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import filled_buffer, rows, seeded
from torchrl_vmfer import SignalSampler


@pytest.mark.parametrize("power", [0.7, -2.0, 0.0])
def test_draws_follow_the_ranks_of_any_numbers(power):
    values = np.random.default_rng(0).normal(0, 1e3, 200).astype(np.float32)
    values[:3] = values[3]  # ties
    buffer = filled_buffer(SignalSampler("mine", power), 200, capacity=200, generator=seeded(0))
    buffer.update_priority(torch.arange(200), torch.from_numpy(values))
    order = sorted(values.tolist(), reverse=power >= 0)
    weights = {value: [] for value in order}
    for rank, value in enumerate(order, 1):
        weights[value].append(rank ** -abs(power))
    expected = np.array([np.mean(weights[value]) for value in values.tolist()])
    expected /= expected.sum()
    np.testing.assert_allclose(buffer.sampler.probabilities(), expected, rtol=1e-6)
    assert_drawn_from(buffer.sampler.sample(buffer.storage, 500_000)[0].numpy(), expected)


@pytest.mark.parametrize("power", [1.0, -1.0])
def test_new_transitions_rank_first(power):
    buffer = filled_buffer(SignalSampler("mine", power), 4)
    buffer.update_priority(torch.arange(4), torch.tensor([-5.0, 9.0, 0.0, 1.0]))
    buffer.extend(rows(4, 2))
    found = buffer.sampler.probabilities()
    np.testing.assert_allclose(found[4:], (1 + 1 / 2) / 2 / sum(1 / k for k in range(1, 7)))


def test_a_state_of_another_signal_is_refused():
    state = filled_buffer(SignalSampler("mine"), 4).sampler.state_dict()
    with pytest.raises(ValueError, match="signal"):
        SignalSampler("other").load_state_dict(state)


def test_neighboring_numbers_of_any_size_keep_their_order():
    values = np.float32([-1e30, -3.0, -1e-30, 0.0, 1e-30, 3.0, 3.00001, 1e30])
    buffer = filled_buffer(SignalSampler("mine", 1.0), 8)
    buffer.update_priority(torch.arange(8), torch.from_numpy(values))
    assert (np.diff(buffer.sampler.probabilities()) > 0).all()
