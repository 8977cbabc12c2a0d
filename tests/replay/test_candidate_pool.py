"""Resampling from candidates against independently computed probabilities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from helpers.goal_world import (
    BATCH,
    CAPACITY,
    ORIGINAL,
    World,
    make,
    pairs,
    reward_fn,
    unexpected,
)
from helpers.recorded_buffer import assert_drawn_from
from helpers.sampler_buffers import exact_probabilities, marginal_probabilities, seeded
from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    VMFSampler,
    VMFUncertainty,
)

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

each_mode = pytest.mark.parametrize("mode", ["uncertainty", "rank"])


def plain(count=20, seed=0, **kwargs):
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(64), generator=seeded(seed), **{"batch_size": 8} | kwargs
    )
    buffer.extend(World().steps(count))
    return buffer


def hindsight(world, **kwargs):
    buffer = make(**{"reward_fn": unexpected} | kwargs)
    buffer.extend(world.steps(CAPACITY))
    return buffer


def by_number(batch):
    """A score that is a function of the slot."""
    return 1 + batch["observation"][:, 0]


# --- probabilities -----------------------------------------------------------------------------


@each_mode
@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.3, 1.0, 1.5, 2.0, 2.5, 2.71]), min_size=1, max_size=30))
def test_probabilities_are_exact(mode, factors):
    pool = CandidatePool(plain(), 4, mode, by_number)
    for _ in range(2):
        probabilities = pool.probabilities(torch.tensor(factors)).numpy()
        expected = exact_probabilities(VMFSampler(mode), factors)
        np.testing.assert_allclose(probabilities, expected, rtol=1e-9)


@each_mode
def test_slots_are_drawn_with_the_marginal_probability_over_all_pools(mode):
    pool = CandidatePool(plain(4, seed=1), 3, mode, by_number)
    # One row each: rows of one batch share a pool and are not independent.
    draws = [int(pool.sample(1, keys=["observation"])["index"]) for _ in range(2000)]
    assert_drawn_from(np.array(draws), marginal_probabilities(1 + np.arange(4.0), 3, mode))


# --- with hindsight relabeling -----------------------------------------------------------------


@pytest.mark.parametrize("score", [by_number, lambda batch: by_number(batch)[:, None]])
def test_goals_come_from_the_same_episode(score):
    world = World(2)
    pool = CandidatePool(hindsight(world), 64, score=score)
    batch = pool.sample(500, keys=["observation", "desired_goal"])
    numbers, goals = pairs(batch)
    allowed = world.goals("future")
    assert all(goal in allowed[number] for number, goal in zip(numbers, goals, strict=True))
    assert numbers == batch["index"].tolist()


def actor_and_critics():
    actor = TensorDictSequential(
        TensorDictModule(
            lambda o, g: torch.cat([o, g], -1), ["observation", "desired_goal"], ["input"]
        ),
        TensorDictModule(MLP(in_features=5, out_features=2, num_cells=[8]), ["input"], ["action"]),
    )
    critic = ValueOperator(
        MLP(in_features=7, out_features=1, num_cells=[8]),
        in_keys=["observation", "desired_goal", "action"],
    )
    return TD3Loss(actor, critic, bounds=(-1.0, 1.0))


@each_mode
def test_vmf_uncertainty_scores_candidates(mode):
    torch.manual_seed(0)
    score = VMFUncertainty(actor_and_critics())
    buffer = hindsight(World(2), her_ratio=0.8)
    pool = CandidatePool(buffer, 256, mode, score)
    batch = pool.sample(keys=["observation"])
    assert set(batch.keys()) == {"observation", "index"}
    assert batch.batch_size == (BATCH,)
    chosen = score(pool.sample(4000, keys=["observation", "desired_goal"]))["vmf", "factor"]
    every = score(buffer.sample_uniformly(4000, keys=score.in_keys))["vmf", "factor"]
    assert chosen.mean() > every.mean()


# --- entries read and returned -----------------------------------------------------------------


def test_transforms_are_applied_before_scoring_and_choosing_keys():
    def score(batch):
        return batch["input"][:, 0].abs() + 1

    transform = CatTensors(["observation", "desired_goal"], "input", del_keys=False)
    buffer = hindsight(World(), transform=transform, reward_fn=reward_fn)
    batch = CandidatePool(buffer, 32, score=score).sample(keys=["input"])
    assert set(batch.keys()) == {"input", "index"}
    assert (batch["input"][:, 3:] != ORIGINAL).all()


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
    ("arguments", "error", "message"),
    [
        ((plain(), 0, "rank", by_number), ValueError, "at least 1, got 0"),
        ((plain(), 2.5, "rank", by_number), ValueError, "got 2.5"),
        ((plain(), 8, "ranks", by_number), ValueError, "'rank', got 'ranks'"),
        ((plain(), 8, "rank", 3), TypeError, "score must be a function"),
        ((plain(), 8, "rank"), TypeError, r"got None.*VMFSampler\('rank', pool_size=8\)"),
        ((TensorDictReplayBuffer(), 8), TypeError, "got TensorDictReplayBuffer"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_to_do(arguments, error, message):
    with pytest.raises(error, match=message):
        CandidatePool(*arguments)


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
    "score", [lambda batch: torch.ones(3), lambda batch: torch.ones(8, 2), lambda batch: batch]
)
def test_a_score_of_the_wrong_type_or_shape_is_rejected(score):
    with pytest.raises(ValueError, match=r"for 8 candidates: it must return a tensor \[8\]"):
        CandidatePool(plain(), 8, score=score).sample()


def test_sampling_without_data_batch_size_or_a_list_of_keys_is_rejected():
    empty = ActorCriticReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    with pytest.raises(RuntimeError, match="empty storage"):
        CandidatePool(empty, 8, score=by_number).sample()
    with pytest.raises(RuntimeError, match="No batch size"):
        CandidatePool(plain(batch_size=None), 8, score=by_number).sample()
    with pytest.raises(TypeError, match=r"pass \['observation'\]"):
        CandidatePool(plain(), 8, score=by_number).sample(keys="observation")
