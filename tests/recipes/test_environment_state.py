"""A saved environment resumes in the middle of an episode, to the bit."""

from __future__ import annotations

import io
import sys

import gymnasium
import numpy as np
import pytest
import torch

from helpers.environments import MUJOCO, slow_but
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


TASKS = ["GoalReaching3-v0", "GoalReaching6-v0", "PlanarQuadrotor-v0"]
GYMNASIUM = slow_but(
    {"HalfCheetah-v4", "Ant-v4", "Pendulum-v1", "PointMaze_UMaze-v3", *TASKS},
    [*MUJOCO, "Pendulum-v1", "PointMaze_UMaze-v3", *TASKS],  # a maze contains another environment
)
# reacher and point_mass change the model at each reset; quadruped has sensors and contacts.
DM_CONTROL = ["cheetah-run", "reacher-easy", "point_mass-hard", "quadruped-run"]


@pytest.mark.parametrize("name", [*GYMNASIUM, *DM_CONTROL])
def test_saved_episode_resumes_bitwise(name, assert_equal):
    backend = "dm_control" if name in DM_CONTROL else "gymnasium"
    if name in DM_CONTROL:
        pytest.importorskip("dm_control.suite", exc_type=ImportError)
    env, other = (make_environment(EnvConfig(name, backend=backend), seed) for seed in (5, 6))
    size = env.action_spec.shape[-1]
    # Weak actions avoid early termination in tasks that end when the robot falls.
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (2, 300, size)).astype(np.float32)
    before, after = actions[:, : 40 if name in DM_CONTROL else None]
    simulator = env.simulator
    simulator.reset()
    play(simulator, before[:230])
    # Stop in the middle of an episode.
    while any(simulator.step(before[-1])[2:4]):
        simulator.reset()
    state = environment_state(env)
    copy = through_a_file(state)
    outputs = play(simulator, after)
    assert_equal(state, copy)  # later steps do not change it

    other.simulator.reset()
    play(other.simulator, before[:17])
    load_environment_state(other, copy)
    assert play(other.simulator, after) == outputs
    # The random generator of initial states also continues.
    assert other.simulator.reset()[0].tobytes() == simulator.reset()[0].tobytes()


def test_state_in_containers_and_generators_resumes_bitwise():
    env, other = (make_environment(EnvConfig("Lever-v0"), seed) for seed in (0, 1))
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    env.simulator.reset()
    play(env.simulator, actions[:5])
    other.simulator.reset()
    load_environment_state(other, through_a_file(environment_state(env)))
    one, two = env.simulator.unwrapped, other.simulator.unwrapped
    for name in ("goal", "tasks", "counts", "recent", "phase", "nested"):
        assert getattr(two, name) == getattr(one, name), name
    assert two.also_array is two.array
    assert two.recent.maxlen == 2
    assert type(two.nested["a"][0]) is np.float32
    assert play(other.simulator, actions) == play(env.simulator, actions)


def test_float64_actions_train_and_resume(assert_resumes_exactly, checkpoint):
    run = assert_resumes_exactly("td3", "env.name=Lever-v0", "total_frames=131", "log_interval=40")
    assert rows_in(checkpoint(run)["parts"]["replay"])["action"].dtype == torch.float32


def test_franka_kitchen_trains_and_its_checkpoint_can_be_read(train, checkpoint, tmp_path):
    options = ("env.name=FrankaKitchen-v1", "init_random_frames=3", "total_frames=5")
    train("td3", tmp_path, *options, "eval_interval=6")
    assert "saved" in checkpoint(tmp_path)["parts"]["collector"]["environments"][0]


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


class Ball:
    def __init__(self):
        self.height = 0.0


class Bouncing(gymnasium.Env):
    """Keeps its state in an object, and can save it itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, views=False):
        self.views = views
        self.reset()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = Ball()
        self.heights = np.zeros(2)
        self.first = self.heights[:1] if self.views else None
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.ball.height += float(action[0]) + self.np_random.uniform()
        return np.array([self.ball.height], np.float32), 0.0, False, False, {}


class Savable(Bouncing):
    def state_dict(self):
        return {"height": np.float64(self.ball.height), "rng": self.np_random.bit_generator.state}

    def load_state_dict(self, state):
        self.ball.height = float(state["height"])
        self.np_random.bit_generator.state = state["rng"]


class SavableBall(Ball):
    def state_dict(self):
        return {"height": self.height}

    def load_state_dict(self, state):
        self.height = state["height"]


gymnasium.register("Bouncing-v0", Bouncing, max_episode_steps=20)
gymnasium.register("Savable-v0", Savable, max_episode_steps=20)


@pytest.mark.parametrize(("name", "ball"), [("Savable-v0", Ball), ("Bouncing-v0", SavableBall)])
def test_state_dict_of_an_environment_or_an_object_is_used(name, ball, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Ball", ball)
    env, other = (make_environment(EnvConfig(name), seed) for seed in (0, 1))
    actions = np.ones((25, 1), np.float32)
    env.simulator.reset(), other.simulator.reset()
    play(env.simulator, actions[:4])
    load_environment_state(other, through_a_file(environment_state(env)))
    assert play(other.simulator, actions) == play(env.simulator, actions)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_run_with_other_objects_says_so_and_restarts_its_episode(
    num_envs, train, crash, checkpoint, tmp_path, capfd
):
    options = ("env.name=Bouncing-v0", f"num_envs={num_envs}", "total_frames=131")
    crash("td3", tmp_path, *options, at=100)
    message = "restart the interrupted episode, because Bouncing.ball (Ball)"
    assert capfd.readouterr().err.count(message) == 1
    train("td3", tmp_path, *options)
    assert message in capfd.readouterr().err
    rows = rows_in(checkpoint(tmp_path)["parts"]["replay"])
    assert rows["observation"][65 if num_envs == 1 else 66] == 0  # not a multiple of 20


def test_arrays_that_share_memory_are_not_saved(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Ball", SavableBall)
    env = make_environment(EnvConfig("Bouncing-v0", kwargs={"views": True}), 0)
    unsaved = {"unsaved": "Bouncing.first (shares memory with Bouncing.heights)"}
    assert environment_state(env) == unsaved


def test_state_of_another_environment_is_rejected():
    env, other = (make_environment(EnvConfig(name), 0) for name in ("Hopper-v4", "Savable-v0"))
    with pytest.raises(ValueError, match="the environment has no"):
        load_environment_state(other, environment_state(env))
