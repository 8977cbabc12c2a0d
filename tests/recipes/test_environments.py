"""Environments have uniform spaces and resume in the middle of an episode."""

from __future__ import annotations

import collections
import enum
import io
import random

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers.saved_rows import rows_in
from vmfer_recipes.training.environment_state import environment_state, load_environment_state
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.group_options import EnvConfig

MUJOCO = [
    "HalfCheetah-v4",
    "Ant-v4",
    "Hopper-v4",
    "InvertedPendulum-v4",
    "Walker2d-v4",
    "Swimmer-v4",
    "Humanoid-v4",
]


def slow_but(quick: set[str]):
    return [
        pytest.param(name, marks=[] if name in quick else pytest.mark.slow)
        for name in [*MUJOCO, "Pendulum-v1"]
    ]


def play(simulator, actions) -> list:
    """Records all outputs of an environment across several episodes."""
    outputs = []
    for action in actions:
        observation, reward, terminated, truncated, _ = simulator.step(action)
        outputs.append((observation.tobytes(), float(reward), terminated, truncated))
        if terminated or truncated:
            outputs.append(simulator.reset()[0].tobytes())
    return outputs


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", slow_but({"HalfCheetah-v4", "Ant-v4", "Pendulum-v1"}))
def test_saved_episode_resumes_bitwise(name):
    rng = np.random.default_rng(0)
    env = make_environment(EnvConfig(name), seed=5)
    size = env.action_spec.shape[-1]
    # Weak actions avoid early termination in tasks that end when the robot falls.
    before, after = rng.uniform(-0.3, 0.3, (2, 300, size)).astype(np.float32)
    simulator = env.simulator
    simulator.reset()
    for action in before[:230]:
        if any(simulator.step(action)[2:4]):
            simulator.reset()
    # Stop in the middle of an episode.
    while any(simulator.step(before[-1])[2:4]):
        simulator.reset()
    state = through_a_file(environment_state(env))
    outputs = play(simulator, after)
    start = simulator.reset()[0]

    other = make_environment(EnvConfig(name), seed=6)
    other.simulator.reset()
    play(other.simulator, before[:17])
    load_environment_state(other, state)
    assert play(other.simulator, after) == outputs
    # The random generator of initial states also continues.
    assert other.simulator.reset()[0].tobytes() == start.tobytes()


def test_saved_state_is_not_changed_by_later_steps(assert_equal):
    env = make_environment(EnvConfig("HalfCheetah-v4"), seed=0)
    env.simulator.reset()
    state = environment_state(env)
    copy = through_a_file(state)
    play(env.simulator, np.zeros((5, 6), np.float32))
    assert_equal(state, copy)
    assert env.simulator.unwrapped.data.time != copy["4.data"]["time"]


def test_time_limit_continues_to_count_after_a_restore(tmp_path):
    env, other = (make_environment(EnvConfig("ShortCheetah-v0"), seed) for seed in (0, 1))
    actions = np.zeros((50, 6), np.float32)
    env.simulator.reset()
    play(env.simulator, actions[:20])
    other.simulator.reset()
    load_environment_state(other, through_a_file(environment_state(env)))
    truncated = [other.simulator.step(action)[3] for action in actions[:30]]
    assert truncated == [False] * 29 + [True]


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
@pytest.mark.parametrize("name", slow_but({"Hopper-v4", "InvertedPendulum-v4"})[:-1])
def test_task_starts_and_trains(name, algorithm, train, table, tmp_path):
    train(
        algorithm,
        tmp_path,
        f"env={name}",
        "total_frames=200",
        "init_random_frames=100",
        "eval_interval=200",
    )
    assert [row["step"] for row in table(tmp_path / "eval.csv")] == ["0", "200"]
    losses = [float(row["critic_loss"]) for row in table(tmp_path / "train.csv")]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("name", ["InvertedPendulum-v4", "Pendulum-v1", "Humanoid-v4"])
def test_actions_are_rescaled_to_unit_range_and_observations_are_float32(name):
    env = make_environment(EnvConfig(name), seed=0)
    spec = env.action_spec
    assert spec.dtype == torch.float32
    assert (spec.space.low == -1).all()
    assert (spec.space.high == 1).all()
    rollout = env.rollout(3)
    assert rollout["observation"].dtype == torch.float32
    assert rollout["next", "observation"].dtype == torch.float32
    assert rollout["next", "reward"].dtype == torch.float32


def test_maximal_action_is_the_maximal_torque():
    # Pendulum's torque is limited to 2.
    simulator = make_environment(EnvConfig("Pendulum-v1"), seed=0).simulator
    simulator.reset()
    simulator.step(np.ones(1, np.float32))
    assert simulator.unwrapped.last_u == pytest.approx(2)


def test_seed_determines_the_initial_states():
    def initial_states(seed):
        env = make_environment(EnvConfig("HalfCheetah-v4"), seed)
        return torch.stack([env.reset()["observation"] for _ in range(3)])

    assert torch.equal(initial_states(1), initial_states(1))
    assert not torch.equal(initial_states(1), initial_states(2))


@pytest.mark.parametrize(
    ("wrong", "right"), [("HalfCheeta-v4", "HalfCheetah-v4"), ("fetchpush-v4", "FetchPush-v4")]
)
def test_unknown_environment_suggests_the_nearest_name(wrong, right):
    with pytest.raises(UserError, match=f"no environment '{wrong}'.*{right}"):
        make_environment(EnvConfig(wrong), seed=0)


def test_discrete_actions_are_rejected():
    with pytest.raises(UserError, match=r"CartPole-v1 has the action space Discrete\(2\)"):
        make_environment(EnvConfig("CartPole-v1"), seed=0)


class OneArray(gym.Env):
    """An environment that returns the same array at every step and keeps its state in a list."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (2, 2), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.array = np.zeros((2, 2), np.float32)
        self.state = [0, 0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = 0
        self.state = [0, 0]
        return self.array, {}

    def step(self, action):
        self.array += 1
        self.state[0] += 1
        return self.array, 0.0, False, False, {}


gym.register("OneArray-v0", OneArray, max_episode_steps=20)


@pytest.mark.parametrize("fast", ["true", "false"])
def test_observations_do_not_share_the_memory_of_the_simulator(fast, train, checkpoint, tmp_path):
    train("td3", tmp_path, "env.name=OneArray-v0", f"fast={fast}", "total_frames=66")
    rows = rows_in(checkpoint(tmp_path)["parts"]["replay"])
    assert rows["observation"].shape[-1] == 4
    assert rows["observation"][:20, 0].tolist() == list(range(20))
    assert rows["next"]["observation"][:20, 0].tolist() == list(range(1, 21))


def test_lists_of_numbers_are_part_of_the_state():
    env, other = (make_environment(EnvConfig("OneArray-v0"), 0) for _ in range(2))
    env.rollout(5)
    load_environment_state(other, environment_state(env))
    assert other.simulator.unwrapped.state == [5, 0]


def test_nested_environments_are_part_of_the_state():
    """The mazes of Gymnasium-Robotics contain their simulator in this way."""
    env, other = (make_environment(EnvConfig("PointMaze_UMaze-v3"), 0) for _ in range(2))
    env.rollout(7, break_when_any_done=False)
    other.reset()
    load_environment_state(other, environment_state(env))
    action = np.ones(2, np.float32)
    for _ in range(5):
        one, two = env.simulator.step(action)[0], other.simulator.step(action)[0]
        np.testing.assert_array_equal(one, two)


def test_an_environment_that_cannot_be_made_is_reported_in_one_line():
    with pytest.raises(UserError, match="HalfCheetah-v3 cannot be made"):
        make_environment(EnvConfig("HalfCheetah-v3"), 0)


class Phase(enum.Enum):
    DOWN = 0
    UP = 1


class Lever(gym.Env):
    """An environment with actions of any data type and state in many kinds of attributes.

    Names and dictionaries are as in FrankaKitchen, which has float64 actions.
    """

    observation_space = gym.spaces.Dict(
        {
            "observation": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "achieved_goal": gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (1,), np.float64)}),
            "desired_goal": gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (1,), np.float64)}),
        }
    )

    def __init__(self, dtype=np.float64, low=-2, high=2):
        self.action_space = gym.spaces.Box(low, high, (2,), dtype)
        self.robot_name = np.str_("Lever")
        self.goal = {"x": np.array([0.5])}
        self.received = []
        self.renderer = object()  # no state
        self._start(0)

    def _start(self, seed):
        self.tasks = {np.str_("up"), "down"}
        self.counts = collections.defaultdict(int)
        self.recent = collections.deque(maxlen=2)
        self.phase = Phase.DOWN
        self.nested = {"a": [np.float32(0.1), {"b": (1, None)}]}
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)
        self.array = np.random.Generator(np.random.MT19937(0))
        self.received = []
        self.renderer = object()  # no state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._start(seed)
        self.position = self.np_random.uniform(-1, 1, 2)
        return self._observation(), {"tasks": {"left": {"up"}}}

    def step(self, action):
        assert action.dtype == self.action_space.dtype
        assert self.action_space.contains(action)
        self.received.append(action.tolist())
        self.recent.append(float(action[0]))
        self.counts["steps"] += 1
        self.phase = Phase.UP
        self.tasks.discard("up")
        self.nested["a"][0] = self.nested["a"][0] * np.float32(1.1)
        noise = self.legacy.uniform() + self.python.random() + self.array.uniform()
        self.position = self.position + 0.01 * action * (1 + self.nested["a"][0]) + noise
        reward = float(self.counts["steps"] + sum(self.recent) + len(self.tasks))
        return self._observation(), reward, False, False, {"tasks": {"left": self.tasks}}

    def _observation(self):
        goal = {"x": self.position[:1] * 1.0}
        return {"observation": self.position, "achieved_goal": goal, "desired_goal": self.goal}


gym.register("Lever-v0", Lever, max_episode_steps=30)


@pytest.mark.parametrize(
    ("algorithm", "fast"),
    [
        ("td3", "true"),
        pytest.param("sac", "false", marks=pytest.mark.slow),
        pytest.param("td3", "false", marks=pytest.mark.slow),
        pytest.param("sac", "true", marks=pytest.mark.slow),
    ],
)
def test_float64_actions_train_and_resume(
    algorithm, fast, train, at_step, assert_equal, checkpoint, table, tmp_path
):
    def crash():
        raise KeyboardInterrupt

    options = ("env.name=Lever-v0", f"fast={fast}", "total_frames=131", "num_eval_episodes=1")
    options += ("checkpoint_interval=65", "log_interval=40")
    whole = train(algorithm, tmp_path / "whole", *options)
    with at_step(100, crash), pytest.raises(KeyboardInterrupt):
        train(algorithm, tmp_path / "stopped", *options)
    assert checkpoint(tmp_path / "stopped")["step"] == 65
    train(algorithm, tmp_path / "stopped", *options)
    rows = rows_in(checkpoint(whole)["parts"]["replay"])
    assert rows["action"].dtype == torch.float32
    assert_equal(rows, rows_in(checkpoint(tmp_path / "stopped")["parts"]["replay"]))
    for name in ("train.csv", "eval.csv"):
        assert table(whole / name) == table(tmp_path / "stopped" / name)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "received"),
    [
        (np.float64, -3, 1, [-3, -1, 1]),
        (np.float16, -3, 1, [-3, -1, 1]),
        (np.int32, -4, 2, [-4, -1, 2]),
        (np.uint8, 0, 255, [0, 128, 255]),
    ],
)
def test_actions_of_any_type_are_rescaled_and_converted(dtype, low, high, received):
    env = make_environment(
        EnvConfig("Lever-v0", kwargs={"dtype": dtype, "low": low, "high": high}), 0
    )
    assert env.action_spec.dtype == torch.float32
    assert (env.action_spec.space.low == -1).all()
    assert (env.action_spec.space.high == 1).all()
    env.simulator.reset()
    for action in (-1, 0, 1):
        env.simulator.step(np.full(2, action, np.float32))
    assert env.simulator.unwrapped.received == [[value] * 2 for value in received]
    assert env.rollout(3)["action"].dtype == torch.float32


def test_state_in_containers_and_generators_resumes_bitwise():
    env, other = (make_environment(EnvConfig("Lever-v0"), seed) for seed in (0, 1))
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    env.simulator.reset()
    play(env.simulator, actions[:5])
    other.simulator.reset()
    load_environment_state(other, through_a_file(environment_state(env)))
    one, two = env.simulator.unwrapped, other.simulator.unwrapped
    for name in ("robot_name", "goal", "tasks", "counts", "recent", "phase", "nested"):
        assert getattr(two, name) == getattr(one, name), name
    assert two.counts["new"] == 0
    assert two.recent.maxlen == 2
    assert type(two.nested["a"][0]) is np.float32
    assert play(other.simulator, actions) == play(env.simulator, actions)


def test_hindsight_rejects_goals_that_are_not_vectors():
    class Rewarded(Lever):
        def compute_reward(self, achieved_goal, desired_goal, info): ...

    gym.register("Rewarded-v0", Rewarded)
    with pytest.raises(UserError, match="goals that are vectors, and those of Rewarded-v0"):
        make_environment(EnvConfig("Rewarded-v0"), 0, goals=True)
    del gym.registry["Rewarded-v0"]


@pytest.mark.parametrize("fast", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_franka_kitchen_trains_and_its_checkpoint_can_be_read(fast, train, checkpoint, tmp_path):
    train(
        "td3",
        tmp_path,
        *("env.name=FrankaKitchen-v1", f"fast={fast}", "init_random_frames=3"),
        *("total_frames=5", "checkpoint_interval=5", "eval_interval=6"),
    )
    saved = checkpoint(tmp_path)
    assert saved["step"] == 5
    assert "Franka" in saved["parts"]["collector"]["environment"].values()


class Mode(enum.Enum):
    """The mode of Workshop-v0."""

    IDLE = 0
    BUSY = 1


ORIGIN = np.zeros(1)  # a constant that all episodes share


class Workshop(gym.Env):
    """Arrays that are views of each other, and objects that are created at the first step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (7,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self):
        self.state = np.zeros(2)
        self.position = self.state[:1]
        self.weights = torch.zeros(2)
        self.first_weight = self.weights[:1]
        self.goals = np.arange(8.0)
        self.matrix = np.asfortranarray(np.random.default_rng(0).normal(size=(64, 64)))
        self.numbers = self.twister = self.dice = self.noise = self.recent = self.mode = None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state[:] = 0
        self.weights[:] = 0
        self.current = self.former = ORIGIN  # separate arrays from the first step on
        self.goal = self.goals[:1]
        return self._observation(), {}

    def step(self, action):
        if self.numbers is None:
            self.numbers = np.random.Generator(np.random.Philox(3))
            self.twister, self.dice = np.random.RandomState(3), random.Random(3)
            self.noise = torch.Generator().manual_seed(3)
            self.recent, self.mode = collections.deque(maxlen=2), Mode.IDLE
        self.position += action + self.numbers.normal() + self.twister.normal()
        self.first_weight += self.dice.random() + torch.rand(1, generator=self.noise)
        self.recent.append(float(self.state[0]))
        self.former, self.current = self.current, self.current + 1
        start = int(self.current[0]) % 8
        self.goal = self.goals[start : start + 1]
        self.mode = Mode.BUSY if self.mode is Mode.IDLE else Mode.IDLE
        return self._observation(), float(self.mode is Mode.BUSY), False, False, {}

    def _observation(self):
        recent = sum(self.recent or [])
        product = (self.matrix @ np.linspace(0, self.state[0], 64)).sum()
        values = [self.state[0], self.weights[0], self.former[0], self.current[0]]
        return np.array([*values, recent, self.goal[0] + self.goals.sum(), product])


gym.register("Workshop-v0", Workshop)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_views_and_objects_made_during_an_episode_resume_bitwise(steps_before):
    env, other = (make_environment(EnvConfig("Workshop-v0"), seed) for seed in (0, 1))
    actions = np.ones((7, 1), np.float32)
    env.simulator.reset()
    play(env.simulator, actions[:4])
    other.simulator.reset()
    play(other.simulator, actions[:steps_before])
    load_environment_state(other, through_a_file(environment_state(env)))
    assert play(other.simulator, actions) == play(env.simulator, actions)
    assert ORIGIN == 0


def test_view_of_a_simulation_is_still_one_after_a_restore():
    env, other = (make_environment(EnvConfig("Hopper-v4"), seed) for seed in (0, 1))
    for each in (env, other):
        each.simulator.reset()
        each.simulator.unwrapped.joints = each.simulator.unwrapped.data.qpos[2:]
    play(env.simulator, np.ones((4, 3), np.float32))
    load_environment_state(other, through_a_file(environment_state(env)))
    play(other.simulator, np.ones((4, 3), np.float32))
    robot = other.simulator.unwrapped
    assert (robot.joints == robot.data.qpos[2:]).all()


def test_enumeration_of_a_checkpoint_is_not_imported():
    env, other = (make_environment(EnvConfig("Workshop-v0"), seed) for seed in (0, 1))
    env.simulator.reset()
    play(env.simulator, np.ones((1, 1), np.float32))
    state = environment_state(env)
    (path,) = (path for path in state["kinds"] if path.endswith(".mode"))
    state["kinds"][path] = ["Enum", "this", "Mode"]
    with pytest.raises(ValueError, match=r"no enumeration this\.Mode"):
        load_environment_state(other, state)
