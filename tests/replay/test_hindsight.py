"""Goals in hindsight against an enumeration of the goals that each transition may get."""

import copy
import re

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.sample_units import Sequence
from torchrl.envs.transforms import CatTensors

from torchrl_vmfer import ActorCriticReplayBuffer, HindsightReplayBuffer, RankPrioritizedSampler

# Tests draw more than a batch where they look at a distribution.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

CAPACITY = 32
BATCH = 16
STRATEGIES = ("future", "final", "episode")
ORIGINAL = -1.0  # the goal of the environment, in every transition

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def reward_fn(achieved, desired):
    return achieved[:, 0] - 2 * desired[:, 0]


def unexpected(achieved, desired):
    raise AssertionError("no reward was asked for")


def make(storage=LazyTensorStorage, seed=0, **kwargs):
    defaults = {"her_ratio": 1.0, "reward_fn": reward_fn, "batch_size": BATCH}
    return HindsightReplayBuffer(
        storage=storage(CAPACITY), generator=generator(seed), **defaults | kwargs
    )


class World:
    """Environments that take turns at random; a transition is known by its number.

    The goal achieved by transition k is (k, -k), so that a goal tells where it comes from.
    """

    def __init__(self, environments=1, trajectories=True, seed=0):
        self.random = np.random.default_rng(seed)
        self.trajectories = trajectories
        self.left = [0] * environments
        self.episode = [0] * environments
        self.num_episodes = 0
        self.history = []  # the episode of each transition

    def steps(self, count):
        numbers, episodes, done = [], [], []
        for _ in range(count):
            turn = self.random.integers(len(self.left))
            if self.left[turn] == 0:
                self.left[turn] = int(self.random.integers(1, 9))
                self.episode[turn] = self.num_episodes
                self.num_episodes += 1
            self.left[turn] -= 1
            numbers.append(len(self.history))
            episodes.append(self.episode[turn])
            done.append(self.left[turn] == 0)
            self.history.append(self.episode[turn])
        return transitions(numbers, done, episodes if self.trajectories else None)

    def goals(self, strategy, capacity=CAPACITY):
        """The numbers of the goals that each live transition may get, by enumeration."""
        live = range(max(0, len(self.history) - capacity), len(self.history))
        allowed = {}
        for number in live:
            mates = [other for other in live if self.history[other] == self.history[number]]
            allowed[number] = {
                "future": [other for other in mates if other >= number],
                "final": mates[-1:],
                "episode": mates,
            }[strategy]
        return allowed


def transitions(numbers, done, trajectories=None):
    number = torch.tensor(numbers, dtype=torch.float32)[:, None]
    goal = torch.full((len(numbers), 2), ORIGINAL)
    data = {
        "observation": number.repeat(1, 3),
        "achieved_goal": torch.cat([number, -number], -1) - 1,
        "desired_goal": goal,
        "next": {
            "observation": number.repeat(1, 3) + 1,
            "achieved_goal": torch.cat([number, -number], -1),
            "desired_goal": goal.clone(),
            "reward": torch.full((len(numbers), 1), 0.25),
            "done": torch.tensor(done)[:, None],
        },
    }
    if trajectories is not None:
        data["collector"] = {"traj_ids": torch.tensor(trajectories)}
    return TensorDict(data, [len(numbers)])


def pairs(batch):
    """The numbers of the transitions and of their goals."""
    goals = batch["desired_goal"]
    assert torch.equal(goals[:, 0], -goals[:, 1])
    return batch["observation"][:, 0].int().tolist(), goals[:, 0].int().tolist()


def assert_goals_are_those_enumerated(buffer, world, strategy, draws=4000):
    allowed = world.goals(strategy)
    seen = {number: set() for number in allowed}
    for number, goal in zip(*pairs(buffer.sample(draws)), strict=True):
        seen[number].add(goal)
    for number, goals in seen.items():
        assert goals <= set(allowed[number]), (number, goals, allowed[number])
    # 4000 draws from at most 32 * 8 pairs miss any one with probability 256 * e^-15 < 1e-4.
    missed = [number for number in allowed if seen[number] != set(allowed[number])]
    assert not missed


def assert_equal(actual, expected):
    assert set(actual.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert torch.equal(actual[key], expected[key]), key


# --- which goals -----------------------------------------------------------------------------

WRITES = {
    "one_by_one": [0] * 70,
    "part_of_the_buffer": [5, 9],
    "exactly_full": [32],
    "up_to_the_wrap_and_over": [20, 20, 3, 20],
    "rows": [1] * 50,
    "all_sizes": [3, 0, 11, 0, 0, 31, 7, 32, 1, 5],
    "more_than_the_buffer": [40, 2, 75, 0],
}


@each_strategy
@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_goals_are_those_of_an_enumeration(writes, environments, strategy):
    world = World(environments)
    buffer = make(strategy=strategy)
    for number, count in enumerate(writes):
        if count == 0:
            buffer.add(world.steps(1)[0])
        else:
            buffer.extend(world.steps(count))
        if number % 3 == 0:
            buffer.sample()  # the index is brought up to date at arbitrary times
        if number % 17 == 0:
            assert_goals_are_those_enumerated(buffer, world, strategy)
    assert_goals_are_those_enumerated(buffer, world, strategy)


@each_strategy
def test_without_trajectory_numbers_episodes_end_where_they_are_done(strategy):
    world = World(trajectories=False)
    buffer = make(strategy=strategy)
    for count in (10, 30, 5, 50, 1):
        buffer.extend(world.steps(count))
        assert_goals_are_those_enumerated(buffer, world, strategy)


@pytest.mark.parametrize("storage", [LazyMemmapStorage, ListStorage, LazyStackStorage])
def test_any_storage_of_one_dimension_serves_and_keeps_the_original_goals(storage):
    world = World(2)
    buffer = make(storage)
    buffer.extend(world.steps(20))
    buffer.sample()
    buffer.extend(world.steps(30))
    assert_goals_are_those_enumerated(buffer, world, "future")
    buffer.sample_actor(100)
    stored = buffer[:]
    assert (stored["desired_goal"] == ORIGINAL).all()
    assert (stored["next", "desired_goal"] == ORIGINAL).all()
    assert (stored["next", "reward"] == 0.25).all()


@each_strategy
def test_goals_are_drawn_uniformly(strategy):
    # Chi-square at 1e-4: a right buffer fails one seed in 10,000, and the seed is fixed.
    world = World(2, seed=3)
    buffer = make(strategy=strategy, seed=1)
    buffer.extend(world.steps(20))
    buffer.extend(world.steps(27))
    allowed = world.goals(strategy)
    expected = {
        (number, goal): 1 / CAPACITY / len(goals)
        for number, goals in allowed.items()
        for goal in goals
    }
    draws = 100_000
    counts = dict.fromkeys(expected, 0)
    for pair in zip(*pairs(buffer.sample(draws)), strict=True):
        counts[pair] += 1
    frequencies = np.array(list(expected.values())) * draws
    assert stats.chisquare(list(counts.values()), frequencies).pvalue > 1e-4


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("side", ["sample", "sample_actor"])
def test_each_row_gets_a_goal_with_the_same_probability(ratio, side):
    buffer = make(her_ratio=ratio)
    buffer.extend(World().steps(30))
    relabelled = torch.stack(
        [getattr(buffer, side)()["desired_goal"][:, 0] != ORIGINAL for _ in range(100)]
    )
    # Binomial tests at 1e-5 for each of 16 rows and the total: one wrong alarm in 5,000 seeds.
    for hits, total in [(int(relabelled.sum()), 100 * BATCH)] + [
        (int(column.sum()), 100) for column in relabelled.T
    ]:
        assert stats.binomtest(hits, total, ratio).pvalue > 1e-5


def test_without_relabelling_samples_are_those_of_a_plain_buffer():
    rows = World().steps(30)
    buffer = make(her_ratio=0.0, reward_fn=unexpected)
    plain = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), batch_size=BATCH, generator=generator()
    )
    for one in (buffer, plain):
        one.extend(rows.clone())
    for _ in range(3):
        assert_equal(buffer.sample(), plain.sample())
        assert_equal(buffer.sample_actor(), plain.sample_actor())


# --- what is written into the sample -----------------------------------------------------------


@pytest.mark.parametrize("side", ["sample", "sample_actor"])
@pytest.mark.parametrize("shape", ["[n]", "[n, 1]", "numpy"])
def test_goal_next_goal_and_reward_change_together_and_nothing_else_does(side, shape):
    rewards = {
        "[n]": reward_fn,
        "[n, 1]": lambda achieved, desired: reward_fn(achieved, desired)[:, None],
        "numpy": lambda achieved, desired: reward_fn(achieved, desired).double().numpy(),
    }
    buffer = make(her_ratio=0.5, reward_fn=rewards[shape])
    buffer.extend(World().steps(50))
    batch = getattr(buffer, side)(500)
    original = buffer[batch["index"]]
    goal = batch["desired_goal"]
    relabelled = goal[:, 0] != ORIGINAL
    assert 0.3 < relabelled.float().mean() < 0.7
    assert torch.equal(batch["next", "desired_goal"], goal)
    expected = reward_fn(batch["next", "achieved_goal"], goal)[:, None]
    assert torch.equal(batch["next", "reward"][relabelled], expected[relabelled])
    changed = ["desired_goal", ("next", "desired_goal"), ("next", "reward")]
    assert_equal(batch[~relabelled].exclude("index"), original[~relabelled].exclude("index"))
    assert_equal(batch.exclude(*changed, "index"), original.exclude(*changed, "index"))


def test_data_without_a_next_goal_get_none():
    buffer = make()
    buffer.extend(World().steps(20).exclude(("next", "desired_goal")))
    assert ("next", "desired_goal") not in buffer.sample().keys(True)


def test_types_are_those_stored():
    buffer = make()
    rows = World().steps(20)
    rows["next", "achieved_goal"] = rows["next", "achieved_goal"].double()
    rows["next", "reward"] = rows["next", "reward"].squeeze(-1)
    buffer.extend(rows)
    batch = buffer.sample()
    assert batch["desired_goal"].dtype == batch["next", "reward"].dtype == torch.float32
    assert batch["next", "reward"].shape == (BATCH,)


def test_other_names_and_nested_goals_are_followed():
    rows = World().steps(20)
    renamed = TensorDict(
        {
            "observation": rows["observation"],
            "task": {"goal": rows["desired_goal"]},
            "outcome": rows["next", "achieved_goal"],
            "gain": rows["next", "reward"],
            "over": rows["next", "done"],
            "run": rows["collector", "traj_ids"],
            "next": {"task": {"goal": rows["desired_goal"].clone()}},
        },
        [20],
    )
    buffer = make(
        goal_key=("task", "goal"),
        achieved_goal_key="outcome",
        reward_key="gain",
        done_key="over",
        trajectory_key="run",
    )
    twin = make()
    buffer.extend(renamed)
    twin.extend(rows)
    batch, expected = buffer.sample(), twin.sample()
    assert torch.equal(batch["task", "goal"], expected["desired_goal"])
    assert torch.equal(batch["next", "task", "goal"], expected["desired_goal"])
    assert torch.equal(batch["gain"], expected["next", "reward"])


# --- reading only what is asked for ------------------------------------------------------------


def columns_read(buffer, monkeypatch):
    read = []
    column = HindsightReplayBuffer._column
    monkeypatch.setattr(
        HindsightReplayBuffer,
        "_column",
        lambda self, key, slots: read.append(key) or column(self, key, slots),
    )
    buffer.sample_actor(keys=["observation"])
    read.clear()
    return read


def test_the_actors_goals_cost_one_entry_and_no_reward(monkeypatch):
    buffer = make(reward_fn=unexpected)
    buffer.extend(World().steps(20))
    read = columns_read(buffer, monkeypatch)
    batch = buffer.sample_actor(keys=["observation", "desired_goal"])
    assert set(batch.keys()) == {"observation", "desired_goal", "index"}
    assert read == [("next", "achieved_goal")]
    assert (batch["desired_goal"] != ORIGINAL).all()


def test_observations_alone_cost_no_goals(monkeypatch):
    buffer = make(reward_fn=unexpected)
    buffer.extend(World().steps(20))
    read = columns_read(buffer, monkeypatch)
    assert set(buffer.sample_actor(keys=["observation"]).keys()) == {"observation", "index"}
    assert read == []


@pytest.mark.parametrize(
    "keys",
    [
        ["observation"],
        ["desired_goal"],
        [("next", "reward")],
        [("next", "desired_goal"), ("next", "reward")],
        ["next"],
        ["observation", "desired_goal", ("next", "achieved_goal")],
    ],
)
def test_entries_do_not_depend_on_what_else_is_read(keys):
    buffer, twin = make(her_ratio=0.6), make(her_ratio=0.6)
    rows = World().steps(50)
    for one in (buffer, twin):
        one.extend(rows.clone())
    for _ in range(3):
        expected = twin.sample_actor().select(*keys, "index")
        assert_equal(buffer.sample_actor(keys=keys), expected)


# --- the bugs of TorchRL 0.14.1's HERReplayBuffer ----------------------------------------------


def test_a_full_buffer_is_extended_by_several_rows():
    # There: RuntimeError at the next sample.
    world, buffer = World(), make()
    for _ in range(20):
        buffer.extend(world.steps(7))
        buffer.sample()
    assert_goals_are_those_enumerated(buffer, world, "future")


@each_strategy
def test_an_episode_across_the_last_slot_keeps_its_own_goals(strategy):
    # There: rows after the last end before the wrap get the range of the previous episode.
    buffer = make(strategy=strategy, trajectory_key="none")
    buffer.extend(transitions(range(28), [number % 14 == 13 for number in range(28)]))
    buffer.extend(transitions(range(28, 42), [number == 41 for number in range(28, 42)]))
    numbers, goals = pairs(buffer.sample(2000))
    across = {goal for number, goal in zip(numbers, goals, strict=True) if number >= 28}
    assert across == ({41} if strategy == "final" else set(range(28, 42)))
    cut = {goal for number, goal in zip(numbers, goals, strict=True) if number < 14}
    assert cut == ({13} if strategy == "final" else set(range(10, 14)))


def test_the_nearest_goal_is_that_of_the_next_state():
    # There: the achieved goal before the action, which needs no action to reach.
    buffer = make()
    buffer.extend(transitions([5], [True], [0]))
    batch = buffer.sample()
    assert torch.equal(batch["desired_goal"], batch["next", "achieved_goal"])


def test_buffer_transforms_see_the_new_goals():
    # There: transforms run before.
    keys = ["observation", "desired_goal"]
    buffer = make(transform=CatTensors(keys, "input", del_keys=False, sort=False))
    buffer.extend(World().steps(40))
    for batch in (buffer.sample(), buffer.sample_actor(keys=["input", "desired_goal"])):
        assert (batch["desired_goal"] != ORIGINAL).all()
        assert torch.equal(batch["input"][:, 3:], batch["desired_goal"])


@each_strategy
def test_environments_that_are_written_side_by_side_never_mix(strategy):
    # There: two thirds of the goals came from the other environment.
    buffer = make(strategy=strategy, batch_size=512)
    for start in range(0, 90, 6):
        numbers = [100 * environment + start + step for environment in (1, 2) for step in range(6)]
        done = [start == 84 and number % 100 == 89 for number in numbers]
        buffer.extend(transitions(numbers, done, [number // 100 for number in numbers]))
        numbers, goals = pairs(buffer.sample())
        assert [number // 100 for number in numbers] == [goal // 100 for goal in goals]


def test_one_seed_gives_identical_samples_whatever_the_global_generator():
    # There: goals are drawn by the global generator.
    rows = World().steps(50)
    samples = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        buffer = make(her_ratio=0.5, seed=7)
        buffer.extend(rows.clone())
        samples.append((buffer.sample(), buffer.sample_actor()))
    for first, second in zip(*samples, strict=True):
        assert_equal(first, second)


def test_loading_leaves_the_callers_state_as_it_is():
    # There: an entry is removed.
    buffer = make()
    buffer.extend(World().steps(50))
    state = buffer.state_dict()
    before = copy.deepcopy(state)
    make().load_state_dict(state)
    assert state.keys() == before.keys()
    assert set(TensorDict(state["actor_sampler"]).keys()) == set(before["actor_sampler"])
    assert torch.equal(state["actor_sampler"]["keys"], before["actor_sampler"]["keys"])


# --- saving and loading ------------------------------------------------------------------------


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


def by_rows(buffer, twin, folder):
    """As recipes do: rows in the order of slots, then writer, samplers and generator."""
    twin.extend(buffer.storage[: len(buffer)].clone())
    restore(buffer, twin)


def by_rows_and_index(buffer, twin, folder):
    torch.save(buffer.episode_index.state_dict(), folder / "index.pt")
    by_rows(buffer, twin, folder)
    twin.episode_index.load_state_dict(torch.load(folder / "index.pt", weights_only=True))


def by_rows_with_a_sample_in_between(buffer, twin, folder):
    twin.extend(buffer.storage[: len(buffer)].clone())
    twin.sample()
    restore(buffer, twin)


def restore(buffer, twin):
    twin.writer.load_state_dict(buffer.writer.state_dict())
    twin.actor_sampler.load_state_dict(buffer.actor_sampler.state_dict())
    twin._rng.set_state(buffer._rng.get_state())


WAYS = (
    by_state_dict,
    by_file,
    by_folder,
    by_checkpoint,
    by_rows,
    by_rows_and_index,
    by_rows_with_a_sample_in_between,
)


@pytest.mark.parametrize("count", [11, 32, 45, 70])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_loaded_buffer_goes_on_like_the_original(way, count, tmp_path):
    world = World(2)
    # The strategy that looks at all of an episode.
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


def test_loading_into_a_buffer_in_use_forgets_its_episodes(tmp_path):
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


@pytest.mark.parametrize("empty_write_count", [False, True])
def test_an_emptied_buffer_starts_afresh(empty_write_count):
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


# --- keeping up with the storage ---------------------------------------------------------------


def rebuilds(monkeypatch):
    done = []
    rebuild = HindsightReplayBuffer._rebuild
    monkeypatch.setattr(
        HindsightReplayBuffer, "_rebuild", lambda self: done.append(1) or rebuild(self)
    )
    return done


def test_the_storage_is_scanned_once_and_then_followed(monkeypatch):
    done = rebuilds(monkeypatch)
    world, buffer = World(2), make()
    for _ in range(100):
        buffer.extend(world.steps(3))
        buffer.sample()
    assert len(done) == 1
    assert_goals_are_those_enumerated(buffer, world, "future")


@pytest.mark.parametrize("count", [20, 32])
def test_a_storage_that_was_filled_before_is_scanned_once(count, monkeypatch):
    done = rebuilds(monkeypatch)
    world, storage = World(2), LazyTensorStorage(CAPACITY)
    TensorDictReplayBuffer(storage=storage).extend(world.steps(count))
    buffer = make(lambda _: storage)
    for _ in range(3):
        assert_goals_are_those_enumerated(buffer, world, "future")
    assert len(done) == 1


def test_writes_through_another_buffer_are_seen():
    world = World(2)
    buffer = make()
    other = TensorDictReplayBuffer(storage=buffer.storage, writer=buffer.writer)
    buffer.set_rng(generator())
    for count in (10, 25, 40):
        other.extend(world.steps(count))
        assert_goals_are_those_enumerated(buffer, world, "future")


def test_a_slot_that_is_rewritten_in_place_is_noticed():
    world = World(2)
    buffer = make()
    buffer.extend(world.steps(20))
    buffer.sample()
    buffer.writer.write_at(torch.tensor([4]), transitions([4], [True], [1000]))
    world.history[4] = 1000
    assert_goals_are_those_enumerated(buffer, world, "future")


def test_prefetched_batches_are_relabelled():
    world, buffer = World(2), make(prefetch=2)
    buffer.extend(world.steps(50))
    for _ in range(20):
        allowed = world.goals("future")
        numbers, goals = pairs(buffer.sample())
        assert all(goal in allowed[number] for number, goal in zip(numbers, goals, strict=True))
    buffer.shutdown()


def test_critic_priorities_generations_and_delayed_construction_go_together():
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


# --- the environment's reward ------------------------------------------------------------------


def test_gymnasium_rewards_are_those_of_the_environment():
    gymnasium_robotics = pytest.importorskip("gymnasium_robotics")
    gymnasium.register_envs(gymnasium_robotics)
    environment = gymnasium.make("FetchReach-v4")
    reward = HindsightReplayBuffer.gymnasium_reward(environment)
    achieved = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    desired = torch.tensor([[0.0, 0.0, 0.04], [0.0, 0.0, 0.06]])
    assert reward(achieved, desired).tolist() == [0.0, -1.0]
    environment.close()


def test_an_environment_without_goals_is_refused_with_the_cure():
    environment = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"CartPoleEnv has no compute_reward.*FetchReach"):
        HindsightReplayBuffer.gymnasium_reward(environment)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"her_ratio": 1.2}, ValueError, r"\[0, 1\], got 1.2"),
        ({"her_ratio": -0.1}, ValueError, r"\[0, 1\], got -0.1"),
        ({"her_ratio": float("nan")}, ValueError, "got nan"),
        ({"strategy": "random"}, ValueError, "'future', 'final', 'episode'.*'random'"),
        ({"reward_fn": None}, TypeError, "gymnasium_reward"),
        ({"sample_unit": Sequence(length=2)}, ValueError, "leave out sample_unit"),
        ({"consume_after_n_samples": 2}, ValueError, "leave out consume_after_n_samples=2"),
        ({"writer": TensorDictMaxValueWriter()}, ValueError, "TensorDictMaxValueWriter: leave"),
        ({"storage": lambda n: LazyTensorStorage(n, ndim=2)}, ValueError, "ndim=2: flatten"),
    ],
)
def test_wrong_arguments_are_refused_with_the_cure(kwargs, error, message):
    with pytest.raises(error, match=message):
        make(**kwargs)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda a, d: torch.zeros(3), r"shape \[3\] for 16 goals.*\[16\] or \[16, 1\]"),
        (lambda a, d: torch.zeros(len(a), 2), r"shape \[16, 2\]"),
        (lambda a, d: torch.tensor(0.0), r"shape \[\]"),
        (lambda a, d: a[:, 0] * torch.nan, r"returned nan for the achieved goal \["),
        (lambda a, d: a[:, :1] + torch.inf, "returned inf"),
    ],
)
def test_a_bad_reward_is_refused_with_shape_or_goals(returned, message):
    buffer = make(reward_fn=returned)
    buffer.extend(World().steps(20))
    with pytest.raises(ValueError, match=message):
        buffer.sample()


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("desired_goal", "goal_key"),
        (("next", "achieved_goal"), "achieved_goal_key"),
        (("next", "reward"), "reward_key"),
        (("next", "done"), "done_key"),
    ],
)
def test_data_without_an_entry_are_refused_by_name(key, argument):
    buffer = make()
    buffer.extend(World().steps(20).exclude(key))
    for sample in (buffer.sample, buffer.sample_actor):
        with pytest.raises(ValueError, match=f"{re.escape(str(key))}.*`{argument}=`"):
            sample()


@pytest.mark.parametrize(
    ("key", "message"),
    [("desired_goal", r"'desired_goal' has the shape \[3\]"), (("next", "reward"), "one reward")],
)
def test_entries_of_a_wrong_shape_are_refused(key, message):
    buffer = make()
    rows = World().steps(20)
    rows[key] = torch.zeros(20, 3)
    buffer.extend(rows)
    with pytest.raises(ValueError, match=message):
        buffer.sample()
