"""Resampling from candidates against independently computed probabilities."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import (
    LazyTensorStorage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.envs.transforms import CatTensors
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives import TD3Loss

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    HindsightReplayBuffer,
    VMFSampler,
    VMFUncertainty,
)

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

MODES = ("uncertainty", "rank")
each_mode = pytest.mark.parametrize("mode", MODES)
ORIGINAL = -1.0


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(count, episode=5):
    number = torch.arange(count, dtype=torch.float32)[:, None]
    goal = torch.full((count, 1), ORIGINAL)
    after = {
        "achieved_goal": number.clone(),
        "desired_goal": goal.clone(),
        "reward": torch.zeros(count, 1),
        "done": number % episode == episode - 1,
    }
    data = {"observation": number.repeat(1, 3), "desired_goal": goal, "next": after}
    return TensorDict(data, [count])


def plain(count=20, factors=None, seed=0, **kwargs):
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(64), generator=generator(seed), **{"batch_size": 8} | kwargs
    )
    buffer.extend(rows(count))
    if factors is not None:
        buffer.update_actor_priority(torch.arange(count), torch.as_tensor(factors))
    return buffer


def hindsight(count=20, seed=0, **kwargs):
    def reward_fn(achieved, desired):
        raise AssertionError("the actor needs no reward")

    buffer = HindsightReplayBuffer(
        storage=LazyTensorStorage(64),
        generator=generator(seed),
        **{"batch_size": 8, "her_ratio": 1.0, "reward_fn": reward_fn} | kwargs,
    )
    buffer.extend(rows(count))
    return buffer


def by_number(batch):
    """A score that is a function of the slot."""
    return 1 + batch["observation"][:, 0]


def reference(factors, mode):
    """Computes the probabilities, one candidate after the other."""
    factors = np.asarray(factors, dtype=np.float64)
    if mode == "uncertainty":
        return factors / factors.sum()
    weights = np.empty(len(factors))
    for candidate, factor in enumerate(factors):
        higher, equal = int((factors > factor).sum()), int((factors == factor).sum())
        weights[candidate] = np.mean([1 / rank for rank in range(higher + 1, higher + equal + 1)])
    return weights / sum(1 / rank for rank in range(1, len(factors) + 1))


def marginal(factors, size, mode):
    """Computes the probability of each slot over all possible pools."""
    count = len(factors)
    total = np.zeros(count)
    for pool in itertools.product(range(count), repeat=size):
        np.add.at(total, list(pool), reference(np.asarray(factors)[list(pool)], mode))
    return total / count**size


def assert_follows(draws, probabilities):
    """Chi-square test at 1e-4: correct draws fail for one seed in 10,000, and seeds are fixed."""
    counts = np.bincount(draws, minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0
    possible = probabilities > 0
    expected = probabilities[possible] * len(draws)
    assert stats.chisquare(counts[possible], expected).pvalue > 1e-4


# --- probabilities -----------------------------------------------------------------------------


@each_mode
@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.3, 1.0, 1.5, 2.0, 2.5, 2.71]), min_size=1, max_size=30))
def test_probabilities_are_exact(mode, factors):
    pool = CandidatePool(plain(), 4, mode, by_number)
    for _ in range(2):
        probabilities = pool.probabilities(torch.tensor(factors)).numpy()
        expected = reference(np.float32(factors), mode)
        np.testing.assert_allclose(probabilities, expected, rtol=1e-9)


@each_mode
def test_slots_are_drawn_with_the_marginal_probability_over_all_pools(mode):
    pool = CandidatePool(plain(4, seed=1), 3, mode, by_number)
    # One row each: rows of one batch share a pool and are not independent.
    draws = [int(pool.sample(1, keys=["observation"])["index"]) for _ in range(2000)]
    assert_follows(draws, marginal(1 + np.arange(4.0), 3, mode))


# --- with hindsight relabeling -----------------------------------------------------------------


@pytest.mark.parametrize("score", [by_number, lambda batch: by_number(batch)[:, None]])
def test_goals_come_from_the_same_episode(score):
    buffer = hindsight()
    batch = CandidatePool(buffer, 64, score=score).sample(500, keys=["observation", "desired_goal"])
    number, goal = batch["observation"][:, 0], batch["desired_goal"][:, 0]
    assert (goal != ORIGINAL).all()
    assert ((goal >= number) & (goal // 5 == number // 5)).all()
    assert torch.equal(number.long(), batch["index"])


def actor_and_critics():
    actor = TensorDictSequential(
        TensorDictModule(
            lambda o, g: torch.cat([o, g], -1), ["observation", "desired_goal"], ["input"]
        ),
        TensorDictModule(MLP(in_features=4, out_features=2, num_cells=[8]), ["input"], ["action"]),
    )
    critic = ValueOperator(
        MLP(in_features=6, out_features=1, num_cells=[8]),
        in_keys=["observation", "desired_goal", "action"],
    )
    return TD3Loss(actor, critic, bounds=(-1.0, 1.0))


@each_mode
def test_vmf_uncertainty_scores_candidates(mode):
    torch.manual_seed(0)
    score = VMFUncertainty(actor_and_critics())
    pool = CandidatePool(hindsight(60, her_ratio=0.8), 256, mode, score)
    batch = pool.sample(keys=["observation"])
    assert set(batch.keys()) == {"observation", "index"}
    assert batch.batch_size == (8,)
    chosen = score(pool.sample(4000, keys=["observation", "desired_goal"]))["vmf", "factor"]
    every = score(hindsight(60).sample_actor(4000, keys=score.in_keys))["vmf", "factor"]
    assert chosen.mean() > every.mean()


# --- entries read and returned -----------------------------------------------------------------


def test_transforms_are_applied_before_scoring_and_choosing_keys():
    def score(batch):
        return batch["input"][:, 0].abs() + 1

    keys = ["observation", "desired_goal"]
    buffer = hindsight(transform=CatTensors(keys, "input", del_keys=False), reward_fn=reward)
    batch = CandidatePool(buffer, 32, score=score).sample(keys=["input"])
    assert set(batch.keys()) == {"input", "index"}
    assert (batch["input"] != ORIGINAL).all()


def reward(achieved, desired):
    return -(achieved != desired).float()


def test_the_batch_contains_index_and_generations():
    writer = TensorDictRoundRobinWriter(track_generations=True)
    buffer = plain(writer=writer)
    batch = CandidatePool(buffer, 32, score=by_number).sample(keys=["observation"])
    assert torch.equal(batch["index_generation"], writer.generations_of(batch["index"]))


def test_a_plain_buffer_may_have_a_storage_of_two_dimensions():
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(60, ndim=2), batch_size=100)
    buffer.extend(TensorDict({"number": torch.arange(24).reshape(4, 6)}, [4, 6]))
    batch = CandidatePool(buffer, 512, score=lambda batch: batch["number"] + 1.0).sample()
    assert batch["index"].shape == (100, 2)
    assert torch.equal(buffer.storage[batch["index"].unbind(-1)]["number"], batch["number"])
    buffer.update_actor_priority(batch["index"], torch.full((100,), 2.0))


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CandidatePool(plain(), 0, score=by_number), ValueError, "at least 1, got 0"),
        (lambda: CandidatePool(plain(), 2.5, score=by_number), ValueError, "got 2.5"),
        (lambda: CandidatePool(plain(), True, score=by_number), ValueError, "got True"),
        (lambda: CandidatePool(plain(), 8, "ranks", by_number), ValueError, "'rank', got 'ranks'"),
        (lambda: CandidatePool(plain(), 8, score=3), TypeError, "score must be a function"),
        (
            lambda: CandidatePool(plain(), 8, "rank"),
            TypeError,
            r"requires score=.*VMFSampler\('rank', pool_size=8\)",
        ),
        (
            lambda: CandidatePool(TensorDictReplayBuffer(), 8),
            TypeError,
            "got TensorDictReplayBuffer",
        ),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_do(make, error, message):
    with pytest.raises(error, match=message):
        make()


@each_mode
@pytest.mark.parametrize("bad", [float("nan"), 0.0, -1.0, float("inf"), 1e-60])
def test_a_bad_factor_is_reported_with_candidate_and_value(mode, bad):
    factors = torch.ones(8, dtype=torch.float64)
    factors[3:5] = bad
    pool = CandidatePool(plain(), 8, mode, score=lambda batch: factors)
    message = f"Candidate 3 has the factor {bad}".replace("+", r"\+")
    with pytest.raises(ValueError, match=message):
        pool.sample()
    with pytest.raises(ValueError, match=message):
        pool.probabilities(factors)


@pytest.mark.parametrize(
    "score",
    [
        lambda batch: torch.ones(3),
        lambda batch: torch.ones(8, 2),
        lambda batch: batch,
        lambda batch: 1.0,
    ],
)
def test_a_score_of_the_wrong_type_or_shape_is_rejected(score):
    with pytest.raises(ValueError, match=r"for 8 candidates: it must return a tensor \[8\]"):
        CandidatePool(plain(), 8, score=score).sample()


def test_sampling_without_data_batch_size_or_a_list_of_keys_is_rejected():
    empty = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(8), actor_sampler=VMFSampler(), batch_size=4
    )
    with pytest.raises(RuntimeError, match="empty storage"):
        CandidatePool(empty, 8, score=by_number).sample()
    with pytest.raises(RuntimeError, match="No batch size"):
        CandidatePool(plain(batch_size=None), 8, score=by_number).sample()
    with pytest.raises(TypeError, match=r"pass \['observation'\]"):
        CandidatePool(plain(), 8, score=by_number).sample(keys="observation")
