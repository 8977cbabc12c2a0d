"""MixedSampler draws exact shares of two samplers and passes everything on to both."""

from functools import partial

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)

from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import (
    EVERY,
    distinct_priorities,
    filled_buffer,
    grid,
    grid_buffer,
    rows,
    seeded,
)
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

MIXTURES = ["vmf_random", "recent_vmf", "prioritized_recent", "random_rank_prioritized"]


def prioritized(capacity=10):
    return PrioritizedSampler(capacity, alpha=0.7, beta=0.5)


@pytest.mark.parametrize(
    ("share", "batch_size"), [(0.5, 8), (0.3, 8), (0.3, 1), (0.999, 3), (0.0, 4), (1.0, 4)]
)
def test_counts_are_the_share_on_average_and_never_off_by_more_than_one(share, batch_size):
    """The newest slot is the only one that the first sampler draws."""
    sampler = MixedSampler(RecentSampler(1e-9, 1, 1), VMFSampler(power=-100), share)
    buffer = filled_buffer(sampler, 2, capacity=2, batch_size=batch_size, generator=seeded(1))
    buffer.update_priority(torch.arange(2), torch.tensor([1.0, 2.7]))  # P of slot 1: e^-99
    batches = np.stack([buffer.sample()["index"].numpy() for _ in range(1000)])
    counts = batches.sum(1)
    assert (np.abs(counts - share * batch_size) < 1).all()
    assert (np.sort(batches, 1)[:, ::-1] == batches).all(), "rows of the first sampler come first"
    deviation = np.sqrt(0.25 / 1000)  # at most, since counts take two values
    assert abs(counts.mean() - share * batch_size) < 4.9 * deviation


@pytest.mark.parametrize("name", MIXTURES)
def test_draws_follow_the_mean_probability(name):
    sampler = EVERY[name]()
    buffer = filled_buffer(sampler, generator=seeded(2), batch_size=4)
    if sampler.signal:
        buffer.update_priority(torch.arange(10), distinct_priorities(10))
    draws = []
    mean = np.zeros(10)
    for _ in range(50):
        probabilities = sampler.probabilities()
        assert sampler.effective_sample_size() == pytest.approx(1 / (probabilities**2).sum())
        mean += probabilities.numpy() / 50
        draws.append(sampler.sample(buffer.storage, 1000)[0].numpy())
    # Rounded counts are less spread than independent draws, which the test tolerates.
    assert_drawn_from(np.concatenate(draws), mean)


@pytest.mark.parametrize("weighted", [RankPrioritizedSampler, prioritized])
@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_rows_without_importance_weights_have_the_weight_one(weighted, batch_size):
    sampler = MixedSampler(RandomSampler(), weighted(), 0.5)
    buffer = filled_buffer(sampler, batch_size=batch_size, generator=seeded(0))
    buffer.update_priority(torch.arange(10), distinct_priorities(10))
    for _ in range(20):
        weight = buffer.sample()["priority_weight"]
        assert weight.shape == (batch_size,)
        assert (weight[: batch_size // 2] == 1).all()
    unweighted = filled_buffer(MixedSampler(VMFSampler(), RandomSampler(), 0.5), batch_size=4)
    assert "priority_weight" not in unweighted.sample()


def test_writes_and_priorities_reach_both_samplers():
    first, second = VMFSampler(), VMFSampler("rank")
    sampler = MixedSampler(first, second, 0.5)
    buffer = filled_buffer(sampler, 8, capacity=10)
    buffer.update_priority(torch.arange(8), distinct_priorities(8))
    buffer.extend(rows(8, 4))
    alone = [VMFSampler(), VMFSampler("rank")]
    for part, reference in zip((first, second), alone, strict=True):
        direct = filled_buffer(reference, 8, capacity=10)
        direct.update_priority(torch.arange(8), distinct_priorities(8))
        direct.extend(rows(8, 4))
        assert torch.equal(part.probabilities(), reference.probabilities())
    assert sampler.priority_age() == 0
    assert sampler.unscored_fraction() == 0.4


@pytest.mark.parametrize("value", [3.0, 1e-4, float("nan")])
def test_priorities_that_one_sampler_rejects_reach_none(value):
    first, second = prioritized(), VMFSampler(power=100)
    sampler = MixedSampler(first, second, 0.5)
    buffer = filled_buffer(sampler)
    before = sampler.probabilities()
    with pytest.raises(ValueError, match=f"Index 1 was given {value}"):
        buffer.update_priority(torch.arange(2), torch.tensor([2.0, value], dtype=torch.float64))
    assert torch.equal(sampler.probabilities(), before)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (partial(LAPSampler, 1.0), RandomSampler, [0.375, 0.625]),
        (partial(PrioritizedSampler, 2, 1.0, 1.0, eps=0.0), RandomSampler, [0.375, 0.625]),
        (partial(PrioritizedSampler, 2, 1.0, 1.0, eps=0.0), partial(LAPSampler, 1.0), [0.25, 0.75]),
        (RandomSampler, VMFSampler, [0.5, 0.5]),  # does not take any
    ],
)
def test_buffers_pass_td_errors_to_a_mixture_of_the_critics(first, second, expected):
    sampler = MixedSampler(first(), second(), 0.5)
    buffer = ActorCriticReplayBuffer(
        storage=TensorStorage(rows(0, 2)), critic_sampler=sampler, batch_size=2
    )
    buffer.sample()
    batch = {"index": torch.arange(2), "td_error": torch.tensor([1.0, 3.0])}
    buffer.update_tensordict_priority(TensorDict(batch, [2]))
    np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-6)


def test_storages_of_two_dimensions():
    buffer = grid_buffer(MixedSampler(RandomSampler(), VMFSampler(), 0.5), 4, 3, batch_size=20)
    buffer.extend(grid(0, 4, 3))
    batch = buffer.sample()
    assert torch.equal(batch["index"] @ torch.tensor([3, 1]), batch["row"])


@pytest.mark.parametrize("first", ["draw", "write", "priority"])
def test_data_that_were_there_before_are_not_forgotten_by_later_calls(first):
    storage = LazyTensorStorage(10)
    storage.set(torch.arange(5), rows(0, 5))
    sampler = MixedSampler(prioritized(), RandomSampler(), 1.0)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=400)
    if first != "priority":
        if first == "write":
            buffer.mark_update(torch.tensor([4]))
        assert len(buffer.sample()["index"].unique()) == 5
    else:
        buffer.update_priority(torch.tensor([1]), torch.tensor([1e-9]))
        counts = buffer.sample()["index"].bincount(minlength=5)
        assert counts[1] <= 3  # its priority is tiny, not zero
        assert counts.count_nonzero() >= 4


@pytest.mark.parametrize("second", [VMFSampler, RankPrioritizedSampler])
def test_a_sampler_without_replacement_draws_each_row_once_in_a_pass(second):
    sampler = MixedSampler(SamplerWithoutReplacement(), second(), 0.5)
    buffer = filled_buffer(sampler, 10, batch_size=6, generator=seeded(3))
    batches = [buffer.sample() for _ in range(40)]
    drawn = torch.cat([batch["index"][: len(batch) - 3] for batch in batches])
    assert len(drawn) == 100  # 3, 3, 3 and 1 in a pass
    assert torch.equal(drawn.reshape(10, 10).sort(-1).values, torch.arange(10).expand(10, 10))


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_sampler_without_replacement_may_have_no_rows_in_a_batch(share):
    sampler = MixedSampler(SamplerWithoutReplacement(), RankPrioritizedSampler(), share)
    buffer = filled_buffer(sampler, 10, batch_size=6, generator=seeded(3))
    for _ in range(20):
        assert buffer.sample()["priority_weight"].shape == (6,)


@pytest.mark.parametrize(
    ("first", "second", "share", "error", "message"),
    [
        *(
            (VMFSampler(), RandomSampler(), bad, ValueError, "share must lie in")
            for bad in (-1, 1.1)
        ),
        (VMFSampler(), RandomSampler(), float("nan"), ValueError, r"share must .* got nan"),
        (VMFSampler(), SliceSampler(num_slices=2), 0.5, TypeError, "second must draw single"),
        (VMFSampler(), RandomSampler, 0.5, TypeError, "second must be a Sampler, got <class"),
        (
            *(InverseTDSampler(), GradientNormSampler(), 0.5, ValueError),
            "InverseTDSampler expects 'td_error' and Gradient",
        ),
        (*[VMFSampler()] * 2, 0.5, ValueError, "the same one twice"),
    ],
    ids=str,
)
def test_bad_arguments_are_rejected(first, second, share, error, message):
    with pytest.raises(error, match=message):
        MixedSampler(first, second, share)


def test_a_sampler_without_probabilities_is_named():
    class Custom(RandomSampler):
        pass

    sampler = filled_buffer(MixedSampler(VMFSampler(), Custom(), 0.5)).sampler
    with pytest.raises(NotImplementedError, match="probabilities of Custom are unknown"):
        sampler.probabilities()
    assert np.isnan(sampler.effective_sample_size())


def test_the_probabilities_of_a_custom_sampler_need_no_storage():
    class Custom(RandomSampler):
        def probabilities(self):
            return torch.tensor([0.0, 0.0, 0.5, 0.5])

    sampler = MixedSampler(RandomSampler(), Custom(), 0.25)
    buffer = filled_buffer(sampler, 4)
    for storage in (None, buffer.storage):
        assert sampler.probabilities(storage).tolist() == [0.0625, 0.0625, 0.4375, 0.4375]
