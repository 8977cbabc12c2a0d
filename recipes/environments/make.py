"""Gymnasium environments for TorchRL, with float32 spaces and one-line errors."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs import GymWrapper

from vmfer_recipes.config.errors import UserError, diverged, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.plugins import import_class
from vmfer_recipes.environments.names import registered_id

# The entries of an observation of a goal-conditioned task.
_GOALS = ("observation", "achieved_goal", "desired_goal")
# A time limit sets `done` but not `terminated`, and losses bootstrap unless `terminated` is set.
# Goals are stored if the environment has them.
_KEPT = (
    *("observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


class Environment(GymWrapper):
    """TorchRL's wrapper of a Gymnasium environment.

    Code that needs no TensorDict steps the ``simulator`` directly.
    """

    own_observation_space: Any  # before observations are converted for the recipes
    own_action_space: Any  # with the bounds and the data type of the environment itself

    def __init__(self, simulator: gym.Env, **kwargs: Any) -> None:
        super().__init__(simulator, **kwargs)
        self.simulator = simulator


def make_environment(
    cfg: EnvConfig, seed: int, goals: bool = False, render_mode: str | None = None
) -> Environment:
    """Makes an environment with float32 observations, and float32 actions in [-1, 1].

    With ``goals``, achieved and desired goals are separate entries. Otherwise the desired goal, if
    the task has one, is part of the observation.
    """
    kwargs = dict(cfg.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    with warnings.catch_warnings():
        # The paper uses the -v4 tasks; Gymnasium warns that newer versions exist.
        warnings.simplefilter("ignore")
        simulator = _made(cfg, kwargs)
        for each in cfg.wrappers:
            simulator = _wrapped(simulator, {"_target_": each} if isinstance(each, str) else each)
        if cfg.action_repeat > 1:
            simulator = ActionRepeat(simulator, cfg.action_repeat)
        _check_actions(simulator.action_space, cfg.name)
        _check_observations(simulator.observation_space, cfg.name)
        env = Environment(_observed(_rescaled(simulator), cfg.name, goals))
    env.own_observation_space = simulator.observation_space
    env.own_action_space = simulator.action_space
    env.set_seed(seed)
    return env


def _made(cfg: EnvConfig, kwargs: dict[str, Any]) -> gym.Env:
    """The environment as its library makes it."""
    try:
        if cfg.backend == "dm_control":
            from vmfer_recipes.environments.dm_control import ControlSuite

            return ControlSuite(cfg.name, **kwargs)
        return gym.make(registered_id(cfg.name), **{"disable_env_checker": True} | kwargs)
    except UserError:
        raise
    except Exception as error:
        cure = "correct env.kwargs" if cfg.kwargs else "install its dependencies"
        raise UserError(
            f"{cfg.name} could not be created ({type(error).__name__}: {first_line(error)}): "
            f"{cure}, or choose another environment."
        ) from error


def _wrapped(env: gym.Env, given: dict[str, Any]) -> gym.Env:
    arguments = {key: value for key, value in given.items() if key != "_target_"}
    path = given.get("_target_")
    if not isinstance(path, str):
        raise UserError(
            f"env.wrappers has {given}, which names no class: write "
            "{_target_: my_package.MyWrapper, steps: 50}."
        )
    wrapper = import_class(path, gym.Wrapper, "env.wrappers")
    if issubclass(wrapper, gym.wrappers.NormalizeObservation):
        raise UserError(
            f"env.wrappers={path} keeps separate statistics in each environment, so that "
            "evaluation would have another normalization than training: use "
            "env.normalize_observations=true instead."
        )
    try:
        return wrapper(env, **arguments)
    except Exception as error:
        raise UserError(
            f"env.wrappers={path} cannot wrap {env} with the arguments {arguments} "
            f"({type(error).__name__}: {first_line(error)}): correct them, as in "
            f"env.wrappers=[{{_target_: {path}, argument: value}}]."
        ) from error


def _check_actions(space: gym.Space, name: str) -> None:
    if not isinstance(space, gym.spaces.Box):
        fault = f"the action space {space}, but the recipes need a continuous one (Box)"
    elif len(space.shape) != 1:
        fault = f"actions of shape {space.shape}, but the recipes need vectors"
    elif not np.isfinite([space.low, space.high]).all():
        fault = "unbounded actions, but the recipes need bounds"
    else:
        return
    raise UserError(f"{name} has {fault}: choose another environment.")


def _check_observations(space: gym.Space, name: str) -> None:
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        for part in space.values() if isinstance(space, gym.spaces.Dict) else space:
            _check_observations(part, name)
    elif len(space.shape or ()) > (1 if space.dtype == np.uint8 else 2):
        raise UserError(
            f"{name} has images as observations (shape {space.shape}, {space.dtype}), but the "
            "recipes need vectors: use env.wrappers= to compute features, or choose another "
            "environment."
        )


class ActionRepeat(gym.Wrapper):
    """Repeats every action, and adds the rewards. It stops at the end of an episode."""

    def __init__(self, env: gym.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: np.ndarray) -> Any:
        """Takes up to ``times`` steps of the environment."""
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def _rescaled(env: gym.Env) -> gym.Env:
    """The environment with float32 actions in [-1, 1]; integer actions are rounded."""
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    if space.dtype == np.float32:
        return gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    # Gymnasium's `RescaleAction` keeps the data type.
    dtype, low, high = space.dtype, space.low.astype(np.float64), space.high.astype(np.float64)

    def rescale(action: np.ndarray) -> np.ndarray:
        fraction = (action.astype(np.float64) + 1) / 2
        scaled = np.clip(low + fraction * (high - low), low, high)
        return (np.rint(scaled) if np.issubdtype(dtype, np.integer) else scaled).astype(dtype)

    unit = gym.spaces.Box(-1, 1, space.shape, np.float32)
    return gym.wrappers.TransformAction(env, rescale, unit)


def _observed(env: gym.Env, name: str, goals: bool) -> gym.Env:
    """The environment with float32 observations."""
    space = env.observation_space
    parts: dict[str, Any] = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}
    has_goals = {*_GOALS} <= {*parts}
    if goals:
        fault = ""
        if not (has_goals and hasattr(env.unwrapped, "compute_reward")):
            fault = f"an environment with goals, and {name} has none"
        elif not all(isinstance(parts[key], gym.spaces.Box) for key in _GOALS):
            fault = f"goals that are vectors, and those of {name} are not"
        if fault:
            cure = "use another replay=, or an environment such as FetchReach-v4"
            raise UserError(f"replay=her needs {fault}: {cure}.")
        goal_space = gym.spaces.Dict({key: _unbounded(parts[key].shape) for key in _GOALS})
        return Guarded(
            env,
            lambda seen: {key: np.array(seen[key], np.float32) for key in _GOALS},
            goal_space,
            name,
        )
    if has_goals:
        env = gym.wrappers.FilterObservation(env, ["observation", "desired_goal"])
    if len(env.observation_space.shape or ()) != 1:
        env = gym.wrappers.FlattenObservation(env)
    # A copy: some simulators return the same array at every step.
    return Guarded(
        env, lambda seen: np.array(seen, np.float32), _unbounded(env.observation_space.shape), name
    )


def _unbounded(shape: Any) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


class Guarded(gym.wrappers.TransformObservation):
    """Converts observations, and reports exceptions and invalid outputs as one-line errors."""

    def __init__(
        self, env: gym.Env, transform: Callable[[Any], Any], space: gym.Space, name: str
    ) -> None:
        super().__init__(env, transform, space)
        self._name = name
        spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {"observation": space}
        self._shapes = {key: part.shape for key, part in spaces.items()}

    def reset(self, **kwargs: Any) -> Any:
        """Starts an episode."""
        return self._guard(super().reset, **kwargs)

    def step(self, action: np.ndarray) -> Any:
        """Takes one environment step."""
        return self._guard(super().step, action)

    def _guard(self, act: Callable[..., Any], *action: np.ndarray, **kwargs: Any) -> Any:
        return self.checked(self.call(act, *action, **kwargs), *action)

    def call(self, act: Callable[..., Any], *action: np.ndarray, **kwargs: Any) -> Any:
        """Calls a method of the environment, and reports its exceptions."""
        try:
            return act(*action, **kwargs)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise self.fault(
                f"raised {type(error).__name__} ({first_line(error)}; line {place.lineno} of "
                f"{Path(place.filename).name})",
                *action,
            ) from error

    def checked(self, result: Any, *action: np.ndarray) -> Any:
        """The result of a reset, or of a step with an action. Reports invalid ones."""
        for key, value in entries(result[0]).items():
            if value.shape != self._shapes[key]:
                raise self.fault(
                    f"returned {key!r} of shape {value.shape}, not {self._shapes[key]}", *action
                )
            if not np.isfinite(value).all():
                raise self.fault(f"returned NaN or infinity in {key!r}", *action)
        if action:
            reward = np.asarray(result[1])
            if reward.ndim or reward.dtype.kind not in "biuf" or not np.isfinite(reward):
                raise self.fault(f"returned the reward {result[1]!r}, not a number", *action)
        if not isinstance(result[-1], dict):
            raise self.fault(f"returned {result[-1]!r} as info, not a dictionary", *action)
        return result

    def fault(self, fault: str, *action: np.ndarray) -> UserError:
        """The error for an invalid output of the environment."""
        if not np.isfinite(action).all():
            return diverged(f"{self._name} got an action of NaN or infinity")
        return UserError(
            f"{self._name} {fault}: fix it and run the same command to resume from the last "
            "checkpoint."
        )


def entries(observation: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of an observation, by key."""
    return observation if isinstance(observation, dict) else {"observation": observation}


def tensors(observation: np.ndarray | dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Converts an observation to entries for a TensorDict."""
    return {key: torch.from_numpy(value) for key, value in entries(observation).items()}


def kept(transitions: TensorDictBase) -> TensorDictBase:
    """Selects the entries of transitions to store."""
    return transitions.select(*_KEPT, strict=False)
