"""A saved and loaded buffer with hindsight relabeling continues like the original."""

import pytest
import torch
from torchrl.checkpoint import Checkpoint

from helpers.hindsight import World, assert_equal, assert_goals_are_those_enumerated, make

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def by_state_dict(buffer, twin, folder):
    twin.load_state_dict(buffer.state_dict())


def by_file(buffer, twin, folder):
    torch.save(buffer.state_dict(), folder / "state.pt")
    twin.load_state_dict(torch.load(folder / "state.pt", weights_only=True))


def by_folder(buffer, twin, folder):
    buffer.dumps(folder / "buffer")
    twin.loads(folder / "buffer")


def by_checkpoint(buffer, twin, folder):
    Checkpoint(buffer=buffer).save(folder / "checkpoint")
    Checkpoint(buffer=twin).load(folder / "checkpoint")


WAYS = (
    by_state_dict,
    by_file,
    by_folder,
    by_checkpoint,
)


@pytest.mark.parametrize("count", [11, 32, 45, 70])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_loaded_buffer_continues_like_the_original(way, count, tmp_path):
    world = World(2)
    # This strategy uses all steps of an episode.
    buffer = make(strategy="episode", her_ratio=0.7)
    twin = make(strategy="episode", her_ratio=0.7, seed=99)
    for rows in world.steps(count).split(4):
        buffer.extend(rows)
        buffer.sample(1)
    way(buffer, twin, tmp_path)
    for size in (1, 3, 30):
        assert_equal(twin.sample(), buffer.sample())
        assert_equal(twin.sample_actor(), buffer.sample_actor())
        rows = world.steps(size)
        for one in (buffer, twin):
            one.extend(rows.clone())
    buffer.her_ratio = twin.her_ratio = 1.0
    assert_goals_are_those_enumerated(twin, world, "episode")


def test_loading_into_a_used_buffer_replaces_its_episodes(tmp_path):
    world, other = World(2, seed=1), World(2, seed=2)
    buffer, target = make(), make()
    buffer.extend(world.steps(50))
    target.extend(other.steps(50))
    target.sample()
    target.load_state_dict(buffer.state_dict())
    assert_goals_are_those_enumerated(target, world, "future")
    target.extend(other.steps(32))
    target.sample()
    buffer.dumps(tmp_path)
    target.loads(tmp_path)
    assert_goals_are_those_enumerated(target, world, "future")
