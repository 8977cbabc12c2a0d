"""Samplers by TD errors and gradient norms against their definitions."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import CubeSampler, filled_buffer, rows, seeded
from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    GradientNormSampler,
    InverseTDSampler,
    LAPSampler,
    MixedSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)
from torchrl_vmfer.samplers.adapters import signal_of


@pytest.mark.parametrize(
    ("make", "weight"),
    [
        (LAPSampler, lambda x: max(x, 1.0) ** 0.4),
        (InverseTDSampler, lambda x: max(x, 1.0) ** -0.4),
        (lambda: InverseTDSampler(2.0, floor=0.25), lambda x: max(x, 0.25) ** -2.0),
        (lambda: InverseTDSampler(0.0), lambda x: 1.0),
        (GradientNormSampler, lambda x: x),
        (lambda: GradientNormSampler(0.5), lambda x: x**0.5),
        (lambda: GradientNormSampler(0), lambda x: 1.0),
        (CubeSampler, lambda x: x**3),
    ],
    ids=["lap", "la3p", "inverse_square", "inverse_0", "norm", "norm_root", "norm_0", "custom"],
)
def test_draws_follow_the_definition_without_importance_weights(make, weight):
    values = np.random.default_rng(0).exponential(3.0, 500).astype(np.float32)
    values[:5] = 0
    buffer = filled_buffer(make(), 500, capacity=500, generator=seeded(0))
    buffer.update_priority(torch.arange(500), torch.from_numpy(values))
    expected = np.array([weight(float(value)) for value in values])
    expected /= expected.sum()
    np.testing.assert_allclose(buffer.sampler.probabilities(), expected, rtol=1e-6)
    index, info = buffer.sampler.sample(buffer.storage, 1_000_000)
    assert info == {}
    assert_drawn_from(index.numpy(), expected)


@pytest.mark.parametrize(("make", "sign"), [(LAPSampler, 1), (InverseTDSampler, -1)])
def test_new_slots_have_the_largest_td_error_so_far(make, sign):
    sampler = make()
    buffer = filled_buffer(sampler, 4)
    assert sampler.default_priority == 1
    buffer.update_priority(torch.tensor([0, 1]), torch.tensor([0.1, 32.0]))
    buffer.update_priority(torch.tensor([1]), torch.tensor([2.0]))
    buffer.extend(rows(4, 1))
    expected = np.array([1.0, 2, 1, 1, 32]) ** (sign * 0.4)
    np.testing.assert_allclose(sampler.probabilities(), expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_slots_without_a_norm_have_the_largest_norm_at_any_scale(scale):
    sampler = GradientNormSampler()
    buffer = filled_buffer(sampler, 4)
    np.testing.assert_allclose(sampler.probabilities(), 0.25)
    buffer.update_priority(torch.tensor([0]), torch.tensor([0.0]))
    buffer.update_priority(torch.tensor([0, 1]), scale * torch.tensor([1.0, 3.0]))
    np.testing.assert_allclose(sampler.probabilities(), [0.1, 0.3, 0.3, 0.3], rtol=1e-6)
    buffer.update_priority(torch.tensor([2]), scale * torch.tensor([8.0]))
    buffer.extend(rows(4, 1))
    expected = np.array([1, 3, 8, 3, 8]) / 23
    np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-6)


def test_norms_of_zero_are_never_drawn_unless_all_are_zero():
    buffer = filled_buffer(GradientNormSampler(), batch_size=1000)
    buffer.update_priority(torch.arange(10), torch.zeros(10))
    assert len(buffer.sample()["index"].unique()) == 10
    buffer.update_priority(torch.tensor([3]), torch.tensor([1e-20]))
    assert buffer.sample()["index"].unique().tolist() == [3]


def test_signals():
    class Custom(RandomSampler):
        def update_priority(self, index, priority, *, storage=None):
            pass

    signals = {
        "factor": [VMFSampler(), Custom(), MixedSampler(RandomSampler(), VMFSampler("rank"), 0.5)],
        "td_error": [InverseTDSampler(), LAPSampler(), RankPrioritizedSampler()],
        "gradient_norm": [GradientNormSampler()],
        None: [RecentSampler(), RandomSampler(), MixedSampler(RecentSampler(), RandomSampler(), 1)],
    }
    for signal, samplers in signals.items():
        assert [signal_of(sampler) for sampler in samplers] == [signal] * len(samplers)


def test_gradient_norms_are_read_from_the_batch():
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(3), actor_sampler=GradientNormSampler()
    )
    index = buffer.extend(TensorDict({"observation": torch.zeros(3)}, [3]))
    signals = {"vmf_factor": torch.ones(3), "vmf_gradient_norm": torch.tensor([0.0, 1.0, 3.0])}
    buffer.update_tensordict_priority(TensorDict({"index": index, **signals}, [3]))
    np.testing.assert_allclose(buffer.actor_sampler.probabilities(), [0, 0.25, 0.75])
