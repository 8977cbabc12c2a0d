"""InverseTDSampler and GradientNormSampler against their definitions."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import filled_buffer, rows, seeded
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
        (InverseTDSampler, lambda x: max(x, 1.0) ** -0.4),
        (lambda: InverseTDSampler(2.0, floor=0.25), lambda x: max(x, 0.25) ** -2.0),
        (lambda: InverseTDSampler(0.0), lambda x: 1.0),
        (GradientNormSampler, lambda x: x),
        (lambda: GradientNormSampler(0.5), lambda x: x**0.5),
        (lambda: GradientNormSampler(0), lambda x: 1.0),
    ],
    ids=["la3p", "inverse_square", "inverse_0", "norm", "norm_root", "norm_0"],
)
def test_draws_follow_the_definition(make, weight):
    values = np.random.default_rng(0).exponential(3.0, 500).astype(np.float32)
    values[:5] = 0
    buffer = filled_buffer(make(), 500, capacity=500, generator=seeded(0))
    buffer.update_priority(torch.arange(500), torch.from_numpy(values))
    expected = np.array([weight(float(value)) for value in values])
    expected /= expected.sum()
    np.testing.assert_allclose(buffer.sampler.probabilities(), expected, rtol=1e-6)
    index, _ = buffer.sampler.sample(buffer.storage, 200_000)
    assert_drawn_from(index.numpy(), expected)


def test_new_slots_have_the_largest_td_error():
    sampler = InverseTDSampler()
    buffer = filled_buffer(sampler, 4)
    assert sampler.default_priority == 1
    buffer.update_priority(torch.tensor([0, 1]), torch.tensor([0.1, 32.0]))
    buffer.extend(rows(4, 1))
    expected = np.array([1, 32, 1, 1, 32]) ** -0.4
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


@pytest.mark.parametrize("tiny", [1e-300, 1e-50, 1e-42])
def test_tiny_numbers_are_accepted(tiny):
    for sampler in (GradientNormSampler(), InverseTDSampler()):
        buffer = filled_buffer(sampler, batch_size=4)
        buffer.update_priority(torch.arange(10), torch.full((10,), tiny, dtype=torch.float64))
        assert torch.isfinite(sampler.probabilities()).all()
        buffer.sample()


def draw_batches(buffer, count):
    for _ in range(count):
        buffer.sample()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (VMFSampler, "never given a factor"),
        (InverseTDSampler, r"never given a td_error.*td_error\.abs"),
        (GradientNormSampler, "never given a gradient_norm.*vmf_gradient_norm"),
    ],
)
def test_a_missing_signal_is_named_once(make, message):
    buffer = filled_buffer(make(), batch_size=4)
    with pytest.warns(UserWarning, match=message) as caught:
        draw_batches(buffer, 250)
    assert len(caught) == 1


def test_the_missing_signal_of_an_own_sampler_is_named():
    class Own(GradientNormSampler):
        signal = "surprise"

    with pytest.warns(UserWarning, match="never given a surprise"):
        draw_batches(filled_buffer(Own(), batch_size=4), 100)


def test_signals():
    class Own(RandomSampler):
        def update_priority(self, index, priority, *, storage=None):
            pass

    signals = {
        "factor": [VMFSampler(), Own(), MixedSampler(RandomSampler(), VMFSampler("rank"), 0.5)],
        "td_error": [InverseTDSampler(), LAPSampler(), RankPrioritizedSampler()],
        "gradient_norm": [GradientNormSampler()],
        None: [RecentSampler(), RandomSampler(), MixedSampler(RecentSampler(), RandomSampler(), 1)],
    }
    for signal, samplers in signals.items():
        assert [signal_of(sampler) for sampler in samplers] == [signal] * len(samplers)


@pytest.mark.parametrize(
    ("make", "entry"),
    [(VMFSampler, "vmf_factor"), (GradientNormSampler, "vmf_gradient_norm")],
)
def test_the_entry_of_a_batch_that_matches_the_signal_is_used(make, entry):
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(3), actor_sampler=make(), batch_size=3
    )
    index = buffer.extend(TensorDict({"observation": torch.zeros(3)}, [3]))
    signals = {"vmf_factor": [1.0, 1.0, 2.0], "vmf_gradient_norm": [0.0, 1.0, 3.0]}
    batch = TensorDict({name: torch.tensor(value) for name, value in signals.items()}, [3])
    buffer.update_tensordict_priority(batch.set("index", index))
    values = np.array(signals[entry])
    np.testing.assert_allclose(buffer.actor_sampler.probabilities(), values / values.sum())


@pytest.mark.parametrize("make", [InverseTDSampler, GradientNormSampler])
def test_a_loaded_sampler_continues_in_the_same_way(make):
    buffer = filled_buffer(make(), 6)
    buffer.update_priority(torch.arange(4), torch.tensor([0.5, 7.0, 0.0, 2.0]))
    twin = make()
    twin.load_state_dict(buffer.sampler.state_dict())
    for sampler in (buffer.sampler, twin):
        sampler.mark_update(torch.tensor([1, 6]))
    assert twin.default_priority == buffer.sampler.default_priority == 7
    assert torch.equal(twin.probabilities(), buffer.sampler.probabilities())
    assert twin.priority_age() == buffer.sampler.priority_age()


@pytest.mark.parametrize(
    ("saved", "loaded", "name"),
    [
        (InverseTDSampler(0.4), InverseTDSampler(0.5), "exponent"),
        (InverseTDSampler(floor=1), InverseTDSampler(floor=2), "floor"),
        (GradientNormSampler(1), GradientNormSampler(2), "power"),
    ],
)
def test_a_state_with_other_settings_is_rejected(saved, loaded, name):
    with pytest.raises(ValueError, match=f"saved with {name}="):
        loaded.load_state_dict(saved.state_dict())
