"""What the samplers draw, against probabilities computed from a plain record of the writes.

Every statistical check has a fixed seed and a false-alarm rate of ``ALARM``, so that all of
them together would fail a correct sampler less than once in a thousand choices of seeds.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

DRAWS = 1_000_000
ALARM = 1e-6
SIZES = [1, 7, 100, 1024, 100_000]


@dataclass(frozen=True)
class Kind:
    """A sampler, and what it should do, computed without the package.

    ``exponent`` is that of the rank, ``None`` where P is proportional to the key.
    """

    name: str
    sampler_type: type
    arguments: dict[str, Any]
    exponent: float | None

    def make_sampler(self):
        return self.sampler_type(**self.arguments)

    def random_keys(self, rng, count):
        if self.sampler_type is VMFSampler:
            return rng.uniform(1, math.e, count).astype(np.float32)
        return rng.exponential(size=count).astype(np.float32)

    def default_key(self, largest_seen):
        if self.sampler_type is VMFSampler or largest_seen is None:
            return 1.0
        return largest_seen

    def probabilities(self, keys):
        keys = np.asarray(keys, np.float64)
        if self.exponent is None:
            return keys / keys.sum()
        weight = np.empty(len(keys))
        weight[np.argsort(-keys)] = np.arange(1, len(keys) + 1) ** -float(self.exponent)
        _, tie = np.unique(keys, return_inverse=True)
        weight = (np.bincount(tie, weights=weight) / np.bincount(tie))[tie]
        return weight / weight.sum()


UNCERTAINTY = Kind("uncertainty", VMFSampler, {"mode": "uncertainty"}, None)
RANK = Kind("rank", VMFSampler, {"mode": "rank"}, 1.0)
PRIORITIZED = [
    Kind(f"rank_prioritized_{alpha}", RankPrioritizedSampler, {"alpha": alpha, "beta": 0.5}, alpha)
    for alpha in (0.7, 0.0, 1.0, 1.5)
]
KINDS = [UNCERTAINTY, RANK, *PRIORITIZED]


def each(kinds):
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name)


def rows(count):
    return TensorDict({"observation": torch.zeros(count)}, [count])


class RecordedBuffer:
    """A real replay buffer beside a plain array of what its slots should hold."""

    def __init__(self, kind, capacity, seed=0, sampler=None):
        self.kind = kind
        self.capacity = capacity
        self.sampler = kind.make_sampler() if sampler is None else sampler
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=self.sampler,
            batch_size=8,
            generator=torch.Generator().manual_seed(seed),
        )
        self._held = np.full(capacity, np.nan, np.float32)
        self._writes = 0
        self._largest_seen = None

    def extend(self, count):
        self.buffer.extend(rows(count))
        slots = np.arange(self._writes, self._writes + count) % self.capacity
        self._held[slots] = self.kind.default_key(self._largest_seen)
        self._writes += count

    def update(self, slots, keys):
        """Sets keys; a dictionary tells which of several for one slot is the last."""
        self.buffer.update_priority(torch.as_tensor(slots), torch.as_tensor(keys))
        slots = np.atleast_1d(slots)
        keys = np.broadcast_to(np.float32(keys), slots.shape)
        last = dict(zip(slots.tolist(), keys.tolist(), strict=True))
        self._held[list(last)] = list(last.values())
        self._largest_seen = max(keys.max(initial=0), self._largest_seen or 0)

    def draw(self, count=DRAWS):
        index, _ = self.sampler.sample(self.buffer.storage, count)
        assert index.dtype == torch.int64
        return index.numpy()

    def __len__(self):
        return min(self._writes, self.capacity)

    @property
    def keys(self):
        return self._held[: len(self)]

    @property
    def probabilities(self):
        return self.kind.probabilities(self.keys)


def partly_filled(recorded, size, rng):
    recorded.extend(size)
    recorded.update(np.arange(size), recorded.kind.random_keys(rng, size))


def full(recorded, size, rng):
    recorded.extend(size)
    recorded.update(np.arange(size), recorded.kind.random_keys(rng, size))


def wrapped(recorded, size, rng):
    total = math.ceil(3.27 * size)
    chunk = max(1, total // 9)
    for start in range(0, total, chunk):
        if len(recorded):
            slots = rng.permutation(len(recorded))[: size // 4 + 1]
            recorded.update(slots, recorded.kind.random_keys(rng, len(slots)))
        recorded.extend(min(chunk, total - start))


def updated_with_duplicates(recorded, size, rng):
    recorded.extend(size)
    for step in range(200):
        slots = rng.integers(size, size=rng.integers(1, 65))
        keys = recorded.kind.random_keys(rng, len(slots))
        if step % 5 == 3:
            recorded.update(slots, float(keys[0]))
        elif step % 5 == 4:
            recorded.update(int(slots[0]), float(keys[0]))
        else:
            recorded.update(np.concatenate((slots, slots[:3])), np.concatenate((keys, keys[-3:])))
        if step % 3 == 0:
            recorded.draw(8)  # the order of the keys is brought up to date between the updates


def mostly_equal(recorded, size, rng):
    recorded.extend(size)
    few = rng.permutation(size)[: size // 10]
    recorded.update(few, recorded.kind.random_keys(rng, len(few)))
    recorded.update(few[: len(few) // 2], 1.25)


def pooled(expected, observed, least):
    """Adjoins cells, the most likely first, until each expects ``least`` draws."""
    order = np.argsort(-expected, kind="stable")
    starts, gathered = [], least
    for at, value in enumerate(expected[order].tolist()):
        if gathered >= least:
            starts.append(at)
            gathered = 0.0
        gathered += value
    if gathered < least and len(starts) > 1:
        starts.pop()
    return tuple(np.add.reduceat(values[order], starts) for values in (expected, observed))


def assert_drawn_from(slots, probabilities, alarm=ALARM):
    probabilities = np.asarray(probabilities)
    assert slots.min() >= 0
    assert slots.max() < len(probabilities)
    assert abs(probabilities.sum() - 1) < 1e-9
    observed = np.bincount(slots, minlength=len(probabilities)).astype(float)
    expected = probabilities / probabilities.sum() * len(slots)
    # Many small cells find single slots that are wrong; few large ones find a general slope.
    for least in (20, len(slots) / 50):
        expected, observed = pooled(expected, observed, least)
        if len(expected) > 1:
            assert stats.chisquare(observed, expected).pvalue > alarm


SITUATIONS = [partly_filled, full, wrapped, updated_with_duplicates, mostly_equal]
CASES = [
    (kind, situation) for kind in (UNCERTAINTY, RANK, PRIORITIZED[0]) for situation in SITUATIONS
]
CASES += [(kind, situation) for kind in PRIORITIZED[1:] for situation in (wrapped, mostly_equal)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "situation"), CASES, ids=[f"{kind.name}-{case.__name__}" for kind, case in CASES]
)
def test_draws_follow_the_record_of_writes_and_updates(kind, size, situation):
    capacity = 2 * size if situation is partly_filled else size
    recorded = RecordedBuffer(kind, capacity, seed=size)
    situation(recorded, size, np.random.default_rng(size))
    assert len(recorded) == len(recorded.buffer) == size
    reported = recorded.sampler.probabilities()
    assert reported.dtype == torch.float64
    np.testing.assert_allclose(reported, recorded.probabilities, rtol=1e-7)
    slots = recorded.draw()
    assert_drawn_from(slots, recorded.probabilities)
    assert_drawn_from(slots, reported)


def test_the_chi_square_detects_a_small_error():
    rng = np.random.default_rng(0)
    probabilities = RANK.probabilities(rng.uniform(1, 2, 1000))
    wrong = probabilities.copy()
    wrong[np.argmax(wrong)] *= 1.03
    slots = rng.choice(1000, size=DRAWS, p=wrong / wrong.sum())
    with pytest.raises(AssertionError):
        assert_drawn_from(slots, probabilities)


@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
@pytest.mark.parametrize("size", SIZES)
def test_first_and_last_slot_are_reachable_whatever_stands_between(kind, size):
    """Of 10^6 draws, an end slot at the highest key expects at least 10."""
    recorded = RecordedBuffer(kind, 2 * size, seed=3)
    recorded.extend(size)
    recorded.update(np.array([0, size - 1]), 2.5)
    slots = recorded.draw()
    assert slots.min() == 0
    assert slots.max() == size - 1


@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
def test_every_slot_of_equal_keys_is_reachable(kind):
    recorded = RecordedBuffer(kind, 1024, seed=4)
    recorded.extend(1024)
    assert np.unique(recorded.draw()).tolist() == list(range(1024))


@each([RANK, *PRIORITIZED])
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_the_first_twenty_ranks_one_by_one(kind, tied):
    rng = np.random.default_rng(5)
    recorded = RecordedBuffer(kind, 100_000, seed=5)
    recorded.extend(100_000)
    recorded.update(np.arange(100_000), kind.random_keys(rng, 100_000))
    recorded.draw(8)
    for _ in range(40):  # moves the head about in the order, past several merges
        head = np.argsort(-recorded.keys)[:100]
        slots = np.concatenate((head, rng.integers(100_000, size=400)))
        recorded.update(slots, kind.random_keys(rng, len(slots)))
        recorded.draw(8)
    if tied:
        recorded.update(np.argsort(-recorded.keys)[4:9], float(np.sort(recorded.keys)[-7]))
    head = np.argsort(-recorded.keys, kind="stable")[:20]
    probabilities = recorded.probabilities[head]
    if not tied:
        ratio = np.arange(1, 21) ** -float(kind.exponent)
        np.testing.assert_allclose(probabilities / probabilities[0], ratio, rtol=1e-9)
    slots = recorded.draw()
    observed = np.array([(slots == slot).sum() for slot in head])
    expected = DRAWS * probabilities
    if kind.exponent:
        assert expected.min() > 20
        within_head = stats.chisquare(observed, expected * observed.sum() / expected.sum())
        assert within_head.pvalue > ALARM
    rest = [DRAWS - observed.sum(), DRAWS - expected.sum()]
    whole = stats.chisquare([observed.sum(), rest[0]], [expected.sum(), rest[1]])
    assert whole.pvalue > ALARM
    # Exact binomial tails: at alpha = 0 a rank expects ten draws, too few for a normal bound.
    for count, probability in zip(observed, probabilities, strict=True):
        alarm = stats.binomtest(int(count), DRAWS, probability).pvalue
        assert alarm > ALARM / len(head)  # Bonferroni


@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
@pytest.mark.parametrize("size", [7, 1024, 100_000])
def test_equal_keys_favour_no_slot_by_its_number(kind, size):
    recorded = RecordedBuffer(kind, size, seed=6)
    recorded.extend(size)
    np.testing.assert_allclose(recorded.sampler.probabilities(), 1 / size, rtol=1e-9)
    slots = recorded.draw()
    lower = size // 2
    assert stats.binomtest(int((slots < lower).sum()), DRAWS, lower / size).pvalue > ALARM
    # The mean slot number is normal with the variance of a uniform one: a slope would move it.
    z = (slots.mean() - (size - 1) / 2) / math.sqrt((size**2 - 1) / 12 / DRAWS)
    assert abs(z) < stats.norm.isf(ALARM / 2)


@each([RANK, *PRIORITIZED])
def test_a_tie_in_the_middle_favours_no_slot_by_its_number(kind):
    recorded = RecordedBuffer(kind, 1000, seed=7)
    recorded.extend(1000)
    rng = np.random.default_rng(7)
    recorded.draw(8)
    recorded.update(np.arange(1000), np.float32(1.5))
    recorded.update(np.arange(0, 1000, 5), kind.random_keys(rng, 200))
    slots = recorded.draw()
    tied = slots[slots % 5 != 0]
    lower = int((tied < 500).sum())
    assert stats.binomtest(lower, len(tied), 0.5).pvalue > ALARM


@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
def test_every_place_in_a_batch_follows_the_same_law_independently(kind):
    recorded = RecordedBuffer(kind, 7, seed=8)
    recorded.extend(7)
    recorded.update(np.arange(7), np.array([1, 2.7, 1.3, 2, 1, 2.2, 1.1], np.float32))
    batches = np.stack([recorded.draw(4) for _ in range(5000)])
    for place in range(4):
        assert_drawn_from(batches[:, place], recorded.probabilities)
    for first, second in ((0, 1), (0, 3), (2, 3)):
        pairs = 7 * batches[:, first] + batches[:, second]
        assert_drawn_from(pairs, np.outer(recorded.probabilities, recorded.probabilities).ravel())


@each([UNCERTAINTY, RANK, PRIORITIZED[0]])
@pytest.mark.parametrize("batch_size", [1, 256])
def test_small_batches_follow_the_same_law_as_large_ones(kind, batch_size):
    recorded = RecordedBuffer(kind, 100, seed=9)
    recorded.extend(100)
    recorded.update(np.arange(100), kind.random_keys(np.random.default_rng(9), 100))
    slots = np.concatenate([recorded.draw(batch_size) for _ in range(2000)])
    assert len(slots) == 2000 * batch_size
    assert_drawn_from(slots, recorded.probabilities)


TINY = {
    "all at 1e-6": lambda rng: np.full(500, 1e-6),
    "around 1e-6": lambda rng: rng.uniform(1e-6, 1e-5, 500),
    "one of 1e-6 to e": lambda rng: np.geomspace(1e-6, math.e, 500),
    "one high": lambda rng: np.append(np.full(499, 1e-6), 1e-3),
    # Rejection delivers about half of these draws, inversion the rest.
    "around 0.1": lambda rng: rng.uniform(0.02, 0.15, 500),
}


@pytest.mark.parametrize("factors", TINY)
@pytest.mark.parametrize("batch_size", [64, 300_000])
def test_factors_far_below_one_are_drawn_exactly(factors, batch_size):
    recorded = RecordedBuffer(UNCERTAINTY, 500, seed=10, sampler=VMFSampler(initial_factor=1e-6))
    recorded.extend(500)
    np.testing.assert_allclose(recorded.sampler.state_dict()["keys"], 1e-6, rtol=1e-7)
    keys = TINY[factors](np.random.default_rng(10)).astype(np.float32)
    recorded.update(np.arange(500), keys)
    batches = 300 if batch_size == 64 else 1
    slots = np.concatenate([recorded.draw(batch_size) for _ in range(batches)])
    np.testing.assert_allclose(recorded.sampler.probabilities(), recorded.probabilities, rtol=1e-9)
    assert_drawn_from(slots, recorded.probabilities)


def test_fresh_slots_at_a_tiny_initial_factor_beside_high_ones():
    recorded = RecordedBuffer(UNCERTAINTY, 20, seed=11, sampler=VMFSampler(initial_factor=1e-6))
    recorded.extend(20)
    slots = recorded.draw()
    assert_drawn_from(slots, np.full(20, 1 / 20))
    recorded.buffer.update_priority(torch.tensor([3, 19]), torch.tensor([1.0, math.e]))
    factors = np.full(20, np.float32(1e-6), np.float64)
    factors[[3, 19]] = 1.0, np.float32(math.e)
    assert_drawn_from(recorded.draw(), factors / factors.sum())


@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_smoothing_is_the_running_average_with_the_last_duplicate(mode, smoothing):
    recorded = RecordedBuffer(RANK, 50, sampler=VMFSampler(mode, smoothing=smoothing))
    recorded.extend(50)
    rng = np.random.default_rng(12)
    expected = np.ones(50)
    for _ in range(100):
        slots = rng.integers(50, size=40)
        factors = rng.uniform(0.4, math.e, 40)
        recorded.buffer.update_priority(torch.as_tensor(slots), torch.as_tensor(factors))
        last = dict(zip(slots.tolist(), factors.tolist(), strict=True))
        for slot, factor in last.items():
            expected[slot] = smoothing * expected[slot] + (1 - smoothing) * factor
    # The average forgets the rounding of earlier steps, so a few float32 steps are enough.
    keys = recorded.sampler.state_dict()["keys"]
    np.testing.assert_allclose(keys, expected, rtol=1e-6)


def test_one_smoothed_update_is_exact_to_the_last_bit():
    sampler = VMFSampler(smoothing=0.9)
    recorded = RecordedBuffer(UNCERTAINTY, 4, sampler=sampler)
    recorded.extend(4)
    recorded.buffer.update_priority(torch.tensor([1, 1, 2]), torch.tensor([2.5, 2.0, 1.0]))
    expected = torch.tensor([1.0, 0.9 * 1 + 0.1 * 2.0, 1.0, 1.0])
    torch.testing.assert_close(sampler.state_dict()["keys"], expected, rtol=1.2e-7, atol=0)


def test_smoothing_starts_again_at_the_initial_factor_when_a_slot_is_overwritten():
    sampler = VMFSampler(smoothing=0.9, initial_factor=2.0)
    recorded = RecordedBuffer(UNCERTAINTY, 3, sampler=sampler)
    recorded.extend(3)
    recorded.buffer.update_priority(torch.arange(3), 1.0)
    recorded.extend(1)
    recorded.buffer.update_priority(torch.tensor([0]), 1.0)
    expected = torch.tensor([1.9, 1.9, 1.9])
    torch.testing.assert_close(sampler.state_dict()["keys"], expected, rtol=1e-6, atol=0)
    recorded.extend(2)
    expected = torch.tensor([1.9, 2.0, 2.0])
    torch.testing.assert_close(sampler.state_dict()["keys"], expected, rtol=1e-6, atol=0)


@each(KINDS)
@pytest.mark.parametrize("size", [300, 20_000])
def test_draws_depend_on_the_keys_and_not_on_how_they_came_about(kind, size):
    rng = np.random.default_rng(13)
    travelled = RecordedBuffer(kind, size)
    travelled.extend(size // 2)
    for step in range(120):
        live = len(travelled)
        slots = rng.integers(live, size=rng.integers(1, 200))
        keys = np.round(kind.random_keys(rng, len(slots)), 2 if step % 2 else 6)
        travelled.update(slots, np.clip(keys, 0.01, 2.71))
        if step % 2:
            travelled.draw(4)
        if step % 10 == 0:
            travelled.extend(size // 10)
    fresh = kind.make_sampler()
    fresh.load_state_dict(travelled.sampler.state_dict())
    draws = []
    for sampler in (travelled.sampler, fresh):
        sampler._rng = torch.Generator().manual_seed(14)
        draws.append([sampler.sample(travelled.buffer.storage, count) for count in (5, 256, 9999)])
    for (index, info), (other_index, other_info) in zip(*draws, strict=True):
        assert torch.equal(index, other_index)
        assert info.keys() == other_info.keys()
        assert all(torch.equal(info[key], other_info[key]) for key in info)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("size", [1, 7, 1024])
@pytest.mark.parametrize("situation", [full, wrapped, mostly_equal])
def test_importance_weights_are_those_of_the_buffer(alpha, beta, size, situation):
    kind = Kind("", RankPrioritizedSampler, {"alpha": alpha, "beta": beta}, alpha)
    recorded = RecordedBuffer(kind, size, seed=15)
    situation(recorded, size, np.random.default_rng(15))
    weights = (1 / size / recorded.probabilities) ** beta
    weights /= weights.max()
    batch = recorded.buffer.sample()
    assert batch["priority_weight"].dtype == torch.float32
    expected = weights[batch["index"].numpy()]
    np.testing.assert_allclose(batch["priority_weight"], expected, rtol=1e-6)
    index, info = recorded.sampler.sample(recorded.buffer.storage, 5000)
    np.testing.assert_allclose(info["priority_weight"], weights[index.numpy()], rtol=1e-6)


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_weights_stay_right_where_the_probability_falls_steeply(tied):
    """P of the last rank is far below the rounding error of a sum that begins with rank 1."""
    kind = Kind("", RankPrioritizedSampler, {"alpha": 4.0, "beta": 0.5}, 4.0)
    recorded = RecordedBuffer(kind, 20_000, seed=20)
    full(recorded, 20_000, np.random.default_rng(20))
    if tied:
        recorded.update(np.arange(0, 20_000, 100), 0.0)
    np.testing.assert_allclose(recorded.sampler.probabilities(), recorded.probabilities, rtol=1e-6)
    index, info = recorded.sampler.sample(recorded.buffer.storage, 5000)
    weights = (recorded.probabilities.min() / recorded.probabilities) ** 0.5
    np.testing.assert_allclose(info["priority_weight"], weights[index.numpy()], rtol=1e-6)


def test_beta_may_change_during_training():
    kind = PRIORITIZED[0]
    recorded = RecordedBuffer(kind, 50)
    full(recorded, 50, np.random.default_rng(16))
    recorded.sampler.beta = 1.0
    index, info = recorded.sampler.sample(recorded.buffer.storage, 500)
    weights = recorded.probabilities.min() / recorded.probabilities
    np.testing.assert_allclose(info["priority_weight"], weights[index.numpy()], rtol=1e-6)


def test_alpha_zero_is_uniform_with_weights_of_one():
    kind = Kind("", RankPrioritizedSampler, {"alpha": 0.0, "beta": 1.0}, 0.0)
    recorded = RecordedBuffer(kind, 1024, seed=17)
    wrapped(recorded, 1024, np.random.default_rng(17))
    index, info = recorded.sampler.sample(recorded.buffer.storage, DRAWS)
    assert_drawn_from(index.numpy(), np.full(1024, 1 / 1024))
    np.testing.assert_allclose(info["priority_weight"], 1, rtol=1e-6)


def test_fresh_transitions_get_the_highest_priority_seen():
    recorded = RecordedBuffer(PRIORITIZED[0], 4)
    recorded.extend(3)
    assert recorded.sampler.state_dict()["keys"].tolist() == [1, 1, 1]
    recorded.buffer.update_priority(torch.arange(3), torch.tensor([0.25, 8.0, 0.5]))
    recorded.buffer.update_priority(torch.tensor([1]), 0.125)  # 8 was seen, if no longer held
    recorded.extend(2)
    assert recorded.sampler.state_dict()["keys"].tolist() == [8, 0.125, 0.5, 8]
    assert recorded.sampler.probabilities().argmax() in (0, 3)


def test_overwritten_slots_are_back_at_the_initial_factor():
    sampler = VMFSampler(initial_factor=1.5)
    recorded = RecordedBuffer(UNCERTAINTY, 4, sampler=sampler)
    recorded.extend(4)
    recorded.buffer.update_priority(torch.arange(4), torch.tensor([2.0, 2.25, 2.5, 1.0]))
    recorded.extend(1)
    recorded.extend(2)
    assert sampler.state_dict()["keys"].tolist() == [1.5, 1.5, 1.5, 1]


@each([UNCERTAINTY, RANK])
def test_the_actor_gets_no_importance_weights(kind):
    recorded = RecordedBuffer(kind, 100)
    full(recorded, 100, np.random.default_rng(18))
    _, info = recorded.sampler.sample(recorded.buffer.storage, 10)
    assert "priority_weight" not in info
    assert set(recorded.buffer.sample().keys()) == {"observation", "index"}


@each(KINDS)
def test_a_storage_that_another_buffer_emptied_and_refilled(kind):
    """TorchRL tells a second buffer on the same storage of writes, but not of empty()."""
    storage, writer = LazyTensorStorage(200), TensorDictRoundRobinWriter()
    generator = torch.Generator().manual_seed(19)
    shared = {"storage": storage, "writer": writer, "batch_size": 8, "generator": generator}
    other = TensorDictReplayBuffer(**shared)
    buffer = TensorDictReplayBuffer(sampler=kind.make_sampler(), **shared)
    other.extend(rows(40))
    buffer.sample()
    other.extend(rows(60))
    other.empty()
    other.extend(rows(50))
    index, _ = buffer.sampler.sample(storage, DRAWS)
    assert_drawn_from(index.numpy(), np.full(50, 1 / 50))
