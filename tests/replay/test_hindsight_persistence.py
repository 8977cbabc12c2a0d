"""A saved and loaded buffer with hindsight relabeling continues like the original."""

import pytest

from helpers.goal_world import World, assert_equal, assert_goals_are_those_enumerated, make

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


@pytest.mark.parametrize("count", [11, 32, 45, 70])
def test_a_loaded_buffer_continues_like_the_original(count, tmp_path):
    world = World(2)
    # This strategy uses all steps of an episode.
    buffer = make(strategy="episode", her_ratio=0.7)
    twin = make(strategy="episode", her_ratio=0.7, seed=99)
    for rows in world.steps(count).split(4):
        buffer.extend(rows)
        buffer.sample(1)
    twin.extend(World(2, seed=2).steps(50))  # is replaced
    twin.sample()
    buffer.dumps(tmp_path)
    twin.loads(tmp_path)
    for size in (1, 3, 30):
        assert_equal(twin.sample(), buffer.sample())
        assert_equal(twin.sample_actor(), buffer.sample_actor())
        rows = world.steps(size)
        for one in (buffer, twin):
            one.extend(rows.clone())
    buffer.her_ratio = twin.her_ratio = 1.0
    assert_goals_are_those_enumerated(twin, world, "episode")
