"""Hindsight relabeling follows all changes to the storage, by any buffer."""

import pytest
import torch
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

from helpers.actor_critic import generator
from helpers.goal_world import (
    BATCH,
    CAPACITY,
    World,
    assert_goals_are_those_enumerated,
    make,
    pairs,
    transitions,
)
from torchrl_vmfer import RankPrioritizedSampler
from torchrl_vmfer.compiled.rows import RowStorage
from torchrl_vmfer.replay.episode_index import EpisodeIndex

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def rebuilds(monkeypatch):
    """Counts how often the episode index is rebuilt."""
    done = []
    clear = EpisodeIndex.clear
    monkeypatch.setattr(EpisodeIndex, "clear", lambda self: done.append(1) or clear(self))
    return done


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, RowStorage])
def test_the_storage_is_scanned_once_and_then_tracked(storage, monkeypatch):
    world, buffer = World(1, trajectories=False), make(storage)
    done = rebuilds(monkeypatch)
    for _ in range(100):
        buffer.extend(world.steps(3))
        buffer.sample()
    assert len(done) == 1
    assert_goals_are_those_enumerated(buffer, world, "future")


@pytest.mark.parametrize("count", [20, 32])
def test_a_prefilled_storage_is_scanned_once(count, monkeypatch):
    world, storage = World(2), LazyTensorStorage(CAPACITY)
    TensorDictReplayBuffer(storage=storage).extend(world.steps(count))
    buffer = make(lambda _: storage)
    done = rebuilds(monkeypatch)
    for _ in range(3):
        assert_goals_are_those_enumerated(buffer, world, "future")
    assert len(done) == 1


@pytest.mark.parametrize("empty_write_count", [False, True])
def test_an_emptied_buffer_starts_from_scratch(empty_write_count):
    buffer = make()
    buffer.extend(World().steps(40))
    buffer.sample()
    buffer.empty(empty_write_count=empty_write_count)
    with pytest.raises(RuntimeError, match="empty storage"):
        buffer.sample()
    world = World(2, seed=5)
    for count in (8, 40):
        buffer.extend(world.steps(count))
        assert_goals_are_those_enumerated(buffer, world, "future")


def test_writes_through_another_buffer_are_detected():
    world = World(2)
    buffer = make()
    other = TensorDictReplayBuffer(storage=buffer.storage, writer=buffer.writer)
    buffer.set_rng(generator())
    for count in (10, 25, 40):
        other.extend(world.steps(count))
        assert_goals_are_those_enumerated(buffer, world, "future")


def test_a_slot_that_is_rewritten_in_place_is_detected():
    world = World(2)
    buffer = make()
    buffer.extend(world.steps(20))
    buffer.sample()
    buffer.writer.write_at(torch.tensor([4]), transitions([4], [True], [1000]))
    world.history[4] = 1000
    assert_goals_are_those_enumerated(buffer, world, "future")


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, RowStorage])
@pytest.mark.parametrize("then_written", [0, 1, 3])
@pytest.mark.parametrize("sampled_first", [False, True])
def test_a_done_flag_that_is_changed_in_place_is_detected(storage, then_written, sampled_first):
    world = World(1, trajectories=False)
    world.left, world.num_episodes = [9], 1
    buffer = make(storage)
    buffer.extend(world.steps(6))
    buffer.sample()
    if sampled_first:
        buffer.extend(world.steps(1))
        buffer.sample()
    buffer[torch.tensor([2])] = transitions([2], [True])
    world.history[:3] = [100] * 3
    if then_written:
        buffer.extend(world.steps(then_written))
    assert_goals_are_those_enumerated(buffer, world, "future")


@pytest.mark.parametrize("storage", [LazyTensorStorage, RowStorage])
@pytest.mark.parametrize("count", [12, CAPACITY])
def test_another_buffer_may_empty_and_refill_the_storage(storage, count):
    buffer = make(storage)
    other = TensorDictReplayBuffer(storage=buffer.storage, writer=buffer.writer)
    buffer.set_rng(generator())
    buffer.extend(World(1, trajectories=False).steps(count))
    buffer.sample()
    other.empty()
    world = World(1, trajectories=False, seed=5)
    other.extend(world.steps(count))
    assert_goals_are_those_enumerated(buffer, world, "future")


def test_prefetched_batches_are_relabeled():
    world, buffer = World(2), make(prefetch=2)
    buffer.extend(world.steps(50))
    for _ in range(20):
        allowed = world.goals("future")
        numbers, goals = pairs(buffer.sample())
        assert all(goal in allowed[number] for number, goal in zip(numbers, goals, strict=True))
    buffer.shutdown()


def test_critic_priorities_generations_and_delayed_init_work_together():
    world = World(2)
    buffer = make(
        critic_sampler=RankPrioritizedSampler(),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        delayed_init=True,
    )
    buffer.extend(world.steps(50))
    batch = buffer.sample()
    buffer.update_priority(batch["index"], torch.rand(BATCH))
    expected = buffer.writer.generations_of(batch["index"])
    assert torch.equal(batch["index_generation"], expected)
    assert batch["priority_weight"].shape == (BATCH,)
    assert_goals_are_those_enumerated(buffer, world, "future", draws=20_000)
