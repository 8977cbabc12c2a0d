"""A saved environment resumes in the middle of an episode, to the bit."""

from __future__ import annotations

import collections
import io

import gymnasium
import numpy as np
import pytest
import torch

from helpers.environments import MUJOCO, ORIGIN, Car, Traffic, slow_but
from helpers.saved_rows import rows_in
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import environment_state, load_environment_state


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


@pytest.mark.parametrize(
    "name", slow_but({"HalfCheetah-v4", "Ant-v4", "Pendulum-v1"}, [*MUJOCO, "Pendulum-v1"])
)
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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps_before", [None, 0, 7])
def test_objects_whose_number_changes_resume_bitwise(steps_before, seed):
    """``None``: the environment that continues has not been reset, so it has no objects."""
    env, other = (make_environment(EnvConfig("Traffic-v0"), s) for s in (seed, seed + 99))
    actions = np.random.default_rng(seed).uniform(-1, 1, (40, 1)).astype(np.float32)
    env.simulator.reset()
    play(env.simulator, actions[:15])
    if steps_before is not None:
        other.simulator.reset()
        play(other.simulator, actions[:steps_before])
    load_environment_state(other, through_a_file(environment_state(env)))
    one, two = env.simulator.unwrapped, other.simulator.unwrapped
    assert two.also_cars is two.cars
    assert not Traffic.cars
    assert [car is two.leader for car in two.cars] == [car is one.leader for car in one.cars]
    assert play(other.simulator, actions) == play(env.simulator, actions)


@pytest.mark.parametrize(
    "make", [object, collections.Counter, lambda: gymnasium.make("Hopper-v4").unwrapped.data]
)
def test_objects_that_cannot_be_restored_are_named_if_their_number_changes(make):
    envs = [make_environment(EnvConfig("Traffic-v0"), seed) for seed in (0, 1)]
    for count, env in enumerate(envs, start=2):
        env.simulator.reset()
        simulator = env.simulator.unwrapped
        simulator.cars[:] = [Car(simulator.np_random) for _ in range(count)]
        for car in simulator.cars:
            car.extra = make()
    with pytest.raises(ValueError, match=r"arrangement of Car objects, whose attribute 'extra'"):
        load_environment_state(envs[1], environment_state(envs[0]))


def test_inner_environments_whose_number_changes_are_named():
    envs = [make_environment(EnvConfig("Traffic-v0"), seed) for seed in (0, 1)]
    for count, env in enumerate(envs, start=1):
        env.simulator.reset()
        env.simulator.unwrapped.inner = [gymnasium.make("Pendulum-v1") for _ in range(count)]
    with pytest.raises(ValueError, match=r"arrangement of .* objects, whose attribute"):
        load_environment_state(envs[0], environment_state(envs[1]))


@pytest.mark.parametrize("name", [["tempfile", "_TemporaryFileCloser"], ["this", "Car"]])
def test_classes_of_other_packages_are_not_made(name):
    env, other = (make_environment(EnvConfig("Traffic-v0"), seed) for seed in (0, 1))
    env.simulator.reset()
    state = environment_state(env)
    classes = state["parts"]["classes"]
    cars = [i for i, (_, kind) in enumerate(classes) if kind == "Car"]
    classes[cars[0]] = name
    with pytest.raises(ValueError, match=f"no {name[1]} object, and none can be created"):
        load_environment_state(other, state)
