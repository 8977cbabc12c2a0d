"""Environments: made by name, and saved and restored in the middle of an episode."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torchrl.envs import GymWrapper

from vmfer_recipes.training.errors import UserError, first_line, nearest
from vmfer_recipes.training.guard import Guarded

__all__ = ["environment_state", "load_environment_state", "make_environment", "tensors"]


# What an observation of a task with goals consists of.
_GOALS = ("observation", "achieved_goal", "desired_goal")
# MuJoCo's own notion of a state (the first two lines) leaves out the positions, velocities and
# forces of the last step, which enter the rewards and observations of the next.
_SIMULATION = (
    *("qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "plugin_state"),
    *("qacc", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "subtree_com", "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext"),
    *("qfrc_actuator", "actuator_force", "sensordata"),
)


def make_environment(name: str, seed: int, goals: bool = False, **kwargs: Any) -> GymWrapper:
    """A Gymnasium environment for TorchRL, with actions in [-1, 1] and 32-bit observations.

    Args:
        name: the environment's id.
        seed: the seed of its random generator.
        goals: whether achieved and desired goals are wanted apart from the observation. Without
            it, the desired goal that a task may have is a part of the observation.
        **kwargs: passed to ``gymnasium.make``, such as ``render_mode``.
    """
    if name not in gym.registry:
        # The Fetch tasks. The package takes a second to import and greets with old news.
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)
    if name not in gym.registry:
        raise UserError(
            f"There is no environment {name!r}. Did you mean: {nearest(name, gym.registry)}?"
        )
    with warnings.catch_warnings():
        # The paper's tasks are the -v4 ones; that there are newer ones is no news.
        warnings.simplefilter("ignore")
        try:
            env = gym.make(name, disable_env_checker=True, **kwargs)
        except Exception as error:
            raise UserError(
                f"{name} cannot be made ({type(error).__name__}: {first_line(error)}): install "
                "what it needs, or choose another environment."
            ) from error
        if not isinstance(env.action_space, gym.spaces.Box):
            raise UserError(
                f"{name} has the action space {env.action_space}, but TD3 and SAC need a "
                "continuous one (Box): choose another environment."
            )
        if len(env.action_space.shape) != 1:
            raise UserError(
                f"{name} has actions of shape {env.action_space.shape}, but TD3 and SAC need "
                "vectors: choose another environment."
            )
        if not np.isfinite([env.action_space.low, env.action_space.high]).all():
            raise UserError(
                f"{name} has unbounded actions, but TD3 and SAC need bounds: choose another "
                "environment."
            )
        env = gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
        env = GymWrapper(_observed(env, name, goals))
    env.set_seed(seed)
    return env


def _observed(env: gym.Env, name: str, goals: bool) -> gym.Env:
    """The environment with 32-bit observations."""
    space = env.observation_space
    parts: dict[str, Any] = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}
    has_goals = {*_GOALS} <= {*parts}
    if goals and not (has_goals and hasattr(env.unwrapped, "compute_reward")):
        raise UserError(
            f"replay=her needs an environment with goals, and {name} has none: use another "
            "replay=, or an environment such as FetchReach-v4."
        )
    if goals:
        single = gym.spaces.Dict({key: _single(parts[key].shape) for key in _GOALS})
        return Guarded(
            env, lambda seen: {key: np.array(seen[key], np.float32) for key in _GOALS}, single
        )
    if has_goals:
        env = gym.wrappers.FilterObservation(env, ["observation", "desired_goal"])
    if len(env.observation_space.shape or ()) != 1:
        env = gym.wrappers.FlattenObservation(env)
    # A copy: some simulators return the same array at every step.
    return Guarded(
        env, lambda seen: np.array(seen, np.float32), _single(env.observation_space.shape)
    )


def _single(shape: Any) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def tensors(observation: np.ndarray | dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """What an environment returned, as entries for a TensorDict."""
    entries = observation if isinstance(observation, dict) else {"observation": observation}
    return {key: torch.from_numpy(value) for key, value in entries.items()}


def environment_state(env: GymWrapper) -> dict[str, Any]:
    """All that decides how an environment goes on: simulator, counters and random generator.

    Numbers, lists of numbers, arrays and random generators among the attributes of the
    environment and of its wrappers are taken, and every array of a MuJoCo simulation. The result
    holds only tensors, numbers and strings.
    """
    return {
        f"{depth}.{key}": encode(value)
        for depth, layer in enumerate(_layers(env))
        for key, value in vars(layer).items()
        for encode in [_encoder(value)]
        if encode is not None
    }


def load_environment_state(env: GymWrapper, state: dict[str, Any]) -> None:
    """Puts an environment made by the same name into a saved state."""
    layers = list(_layers(env))
    for path, saved in state.items():
        depth, key = path.split(".", 1)
        layer = layers[int(depth)]
        value = getattr(layer, key, None)
        if isinstance(value, mujoco.MjData):
            _load_simulation(value, saved)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = saved
        else:
            setattr(layer, key, saved.numpy() if isinstance(saved, torch.Tensor) else saved)


def _layers(env: GymWrapper) -> Iterator[gym.Env]:
    """The wrappers of an environment, the environment, and environments that it is made of."""
    waiting = [env._env]
    while waiting:
        layer = waiting.pop()
        yield layer
        waiting += [value for value in vars(layer).values() if isinstance(value, gym.Env)]


def _encoder(value: Any) -> Callable[[Any], Any] | None:
    # NumPy's numbers first: some of them are Python's as well, which a file cannot hold.
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return lambda value: torch.from_numpy(np.array(value))
    if isinstance(value, (bool, int, float, str, type(None))):
        return lambda value: value
    if isinstance(value, np.random.Generator):
        return lambda value: value.bit_generator.state
    if isinstance(value, mujoco.MjData):
        return _simulation_state
    if type(value) in (list, tuple) and all(type(item) in (bool, int, float) for item in value):
        return lambda value: value
    return None


def _simulation_state(data: mujoco.MjData) -> dict[str, Any]:
    arrays = {name: torch.from_numpy(getattr(data, name).copy()) for name in _SIMULATION}
    return arrays | {"time": data.time}


def _load_simulation(data: mujoco.MjData, state: dict[str, Any]) -> None:
    data.time = state["time"]
    for name in _SIMULATION:
        getattr(data, name)[...] = state[name].numpy()
