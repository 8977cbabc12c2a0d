"""N-step transitions equal an enumeration of the steps of each episode."""

import pytest
import torch
from torchrl.data import LazyTensorStorage, ListStorage, PrioritizedSampler

from helpers.goal_world import BATCH, CAPACITY, World, reward_fn
from helpers.goal_world import make as make_hindsight
from torchrl_vmfer import NStepReplayBuffer

GAMMA = 0.9
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def make(n_step, storage=LazyTensorStorage, **options):
    return NStepReplayBuffer(
        storage=storage(CAPACITY), batch_size=BATCH, n_step=n_step, gamma=GAMMA, **options
    )


def steps_of(world, count):
    """Transitions that start in the state where the last one of their episode ended."""
    rows = world.steps(count)
    rows["number"] = rows["next", "achieved_goal"][:, :1].clone()
    rows["observation"] = rows["achieved_goal"][:, :1].clone()
    rows["next", "observation"] = rows["number"].clone()
    rows["next", "reward"] = torch.randn(count, 1)
    rows["next", "terminated"] = rows["next", "done"] & (torch.rand(count, 1) < 0.5)
    return rows


def written(buffer, world, count):
    """Writes transitions whose rewards are random, in pieces. Returns all of them."""
    rows = steps_of(world, count)
    for piece in rows.split([count // 2, 1, count - count // 2 - 1]):
        buffer.extend(piece)
    return rows


def windows(world, n_step, number):
    """The transitions of the episode of one, from it on, oldest first."""
    later = range(number, len(world.history))
    return [other for other in later if world.history[other] == world.history[number]][:n_step]


def assert_is_enumerated(batch, rows, world, n_step, reward_of=None):
    for row in batch:
        number = int(row["number"])
        steps = windows(world, n_step, number)
        last = rows[steps[-1]]["next"]
        for key in ("observation", "done", "terminated", "achieved_goal"):
            assert torch.equal(row["next", key], last[key]), key
        assert row["steps_to_next_obs"].tolist() == [len(steps)]
        found = [reward_of(row, rows[k]) if reward_of else rows[k]["next", "reward"] for k in steps]
        expected = sum(GAMMA**k * float(reward) for k, reward in enumerate(found))
        assert row["next", "reward"].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("count", [20, 75])  # a part of the ring, and more than two rounds
@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("cut_off", [False, True])
def test_every_transition_equals_its_enumeration(cut_off, environments, count, storage):
    world = World(environments, cut_off=cut_off)
    buffer = make(4, storage)
    rows = written(buffer, world, count)
    batch = buffer.read_rows(torch.arange(len(buffer)), None)
    assert_is_enumerated(batch, rows, world, 4)
    assert set(batch["steps_to_next_obs"].flatten().tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_sampling_leaves_the_stored_transitions_unchanged(storage):
    buffer = make(3, storage)
    rows = written(buffer, World(), 20)
    buffer.sample()
    stored = [buffer.storage.get(slot)["next", "reward"] for slot in range(20)]
    assert torch.equal(torch.stack(stored), rows["next", "reward"])


def test_relabeled_rewards_are_those_of_the_new_goal():
    world = World(3)
    buffer = make_hindsight(n_step=3, gamma=GAMMA, her_ratio=0.7)
    rows = written(buffer, world, 75)
    batch = buffer.sample(200)

    def reward_of(row, step):
        if row["desired_goal"][0] == rows["desired_goal"][0, 0]:
            return step["next", "reward"]
        return reward_fn(step["next", "achieved_goal"][None], row["desired_goal"][None])

    assert_is_enumerated(batch, rows, world, 3, reward_of)
    assert torch.equal(batch["next", "desired_goal"], batch["desired_goal"])


def test_priorities_and_weights_are_those_of_the_first_steps():
    buffers = [
        make(
            n_step,
            critic_sampler=PrioritizedSampler(CAPACITY, alpha=1.0, beta=1.0),
            generator=torch.Generator().manual_seed(0),
        )
        for n_step in (1, 3)
    ]
    for buffer in buffers:
        written(buffer, World(), 20)
        buffer.update_priority(torch.arange(20), torch.arange(1.0, 21))
    one, several = (buffer.sample() for buffer in buffers)
    for key in ("index", "priority_weight", "observation", "action"):
        if key in one:
            assert torch.equal(one[key], several[key])


def test_a_loaded_buffer_continues_its_windows():
    world, buffer = World(2), make(3)
    rows = written(buffer, world, 40)
    other = make(3)
    other.load_state_dict(buffer.state_dict())
    more = steps_of(world, 10)
    for each in (buffer, other):
        each.extend(more.clone())
    slots = torch.arange(len(buffer))
    batch = other.read_rows(slots, None)
    assert (batch == buffer.read_rows(slots, None)).all()
    assert_is_enumerated(batch, torch.cat([rows, more]), world, 3)


def test_the_actor_reads_no_steps():
    buffer = make(3)
    written(buffer, World(), 20)
    assert set(buffer.sample_actor(keys=["observation"]).keys()) == {"index", "observation"}
