"""Saving and restoring an environment within an episode.

Saved are the plain attributes of an environment and its wrappers: numbers, strings, arrays,
tensors, random generators, and lists, tuples, dictionaries, sets and deques of these; and MuJoCo's
simulations and models. Objects of the libraries in ``_CONSTANT``, functions and classes are
constant. An environment, wrapper or object with ``state_dict`` and ``load_state_dict`` is saved by
these methods instead. With any other object, nothing is saved: the episode restarts.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from vmfer_recipes.environments.dm_control import ControlSuite
from vmfer_recipes.environments.make import Environment

# MuJoCo's definition of a state (the first two lines) omits the positions, velocities and forces of
# the last step, which affect the rewards and observations of the next step.
_SIMULATION = (
    *("time", "qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "plugin_state"),
    *("qacc", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "subtree_com", "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext"),
    *("qfrc_actuator", "actuator_force", "sensordata"),
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "deque": deque}
_SIMULATORS = (mujoco.MjData, mujoco.MjModel)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# Libraries whose spaces, specifications, models and renderers are constant.
_CONSTANT = {"gymnasium", "gymnasium_robotics", "mujoco", "dm_control", "dm_env", "pygame"}


class _UnsavedError(Exception):
    """Raised with a description of what cannot be saved."""


def environment_state(env: Environment) -> dict[str, Any]:
    """The full state of an episode as plain data, or only ``{"unsaved": attribute}``."""
    try:
        return {"saved": _Writer().value(env.simulator, type(env.simulator).__name__)}
    except _UnsavedError as error:
        return {"unsaved": str(error)}


def load_environment_state(env: Environment, state: dict[str, Any]) -> bool:
    """Restores a saved state. Returns whether there was one: otherwise the episode restarts."""
    if "saved" in state:
        _Reader().value(state["saved"], env.simulator)
    return "saved" in state


def reseed_environment(env: Environment, seed: int) -> None:
    """Seeds every random generator of an environment, each differently. The episode continues."""
    seeds = np.random.SeedSequence(seed)
    for layer in _layers(env.simulator, set()):
        for generator in [each for each in vars(layer).values() if isinstance(each, _GENERATORS)]:
            number = int(seeds.spawn(1)[0].generate_state(1)[0])
            # In place: several objects may share a generator.
            if isinstance(generator, np.random.Generator):
                generator.bit_generator.state = type(generator.bit_generator)(number).state
            elif isinstance(generator, torch.Generator):
                generator.manual_seed(number)
            else:
                generator.seed(number)


@dataclass
class EnvironmentPart:
    """The state of an environment as a part of a checkpoint."""

    env: Environment

    def state_dict(self) -> dict[str, Any]:
        """The full state, as :func:`environment_state` defines it."""
        return environment_state(self.env)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        load_environment_state(self.env, state)


def _layers(layer: Any, seen: set[int]) -> Iterator[Any]:
    """Yields a wrapper or environment, and the objects in it whose attributes are saved."""
    if id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        for value in [] if _has_methods(layer) else vars(layer).values():
            if _is_layer(value, layer):
                yield from _layers(value, seen)


def _is_layer(value: Any, owner: Any) -> bool:
    if isinstance(value, (gym.Env, RunningMeanStd)):  # the latter: of NormalizeReward
        return True
    return isinstance(owner, ControlSuite) and _package(value) == "dm_control"


def _is_constant(value: Any, owner: Any) -> bool:
    if isinstance(value, _SIMULATORS) or _is_layer(value, owner):
        return False
    return isinstance(value, (*_CODE, np.dtype, gym.Space)) or _package(value) in _CONSTANT


def _has_methods(value: Any) -> bool:
    return all(callable(getattr(type(value), f"{name}state_dict", 0)) for name in ("", "load_"))


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Writer:
    """Converts values to plain data. An object that occurs twice is saved once."""

    def __init__(self) -> None:
        # By id, a number and the value, which is kept alive so that its id stays unique.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._arrays: list[tuple[np.ndarray, str]] = []  # each with its place

    def value(self, value: Any, place: str, owner: Any = None) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, np.str_):
            return str(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return ["number", torch.from_numpy(np.array(value))]
        if _is_constant(value, owner):
            return ["constant"]
        if id(value) in self._seen:
            return ["same", self._seen[id(value)][0]]
        number = len(self._seen)
        self._seen[id(value)] = number, value
        return [*self._content(value, place, owner), number]

    def _content(self, value: Any, place: str, owner: Any) -> list[Any]:
        if _has_methods(value):
            return ["object", self.value(value.state_dict(), place), _class_name(value)]
        if _is_layer(value, owner):
            name, attributes = type(value).__name__, vars(value).items()
            variable = {key: each for key, each in attributes if not _is_constant(each, value)}
            saved = {
                key: self.value(each, f"{name}.{key}", value) for key, each in variable.items()
            }
            return ["layer", saved, _class_name(value)]
        if isinstance(value, _SIMULATORS):
            fields = {name: np.array(getattr(*at)) for name, at in _fields(value).items()}
            return [type(value).__name__, {k: torch.from_numpy(each) for k, each in fields.items()}]
        if isinstance(value, _GENERATORS):
            kind, state = _generator_state(value)
            return ["generator", self.value(state, place), kind]
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            return [self._array_kind(value, place), torch.from_numpy(np.array(value))]
        if type(value) is torch.Tensor:
            return ["tensor", value.detach().clone()]
        if type(value) is dict:
            return ["dict", [[self.value(each, place) for each in pair] for pair in value.items()]]
        if type(value) in _CONTAINERS.values():
            items = sorted(value, key=repr) if isinstance(value, set) else value
            content = [self.value(item, place) for item in items]
            return [type(value).__name__, content, getattr(value, "maxlen", None)]
        raise _UnsavedError(f"{place} ({type(value).__name__})")

    def _array_kind(self, value: np.ndarray, place: str) -> str:
        owner: Any = value
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if owner is not None:
            return "view"  # of a simulation
        for array, other in self._arrays:
            if np.may_share_memory(value, array):
                raise _UnsavedError(f"{place} (shares memory with {other})")
        self._arrays.append((value, place))
        return "array"


class _Reader:
    """Restores values from the output of :class:`_Writer`, in place where there are references."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}  # by number

    def value(self, saved: Any, current: Any) -> Any:
        if not isinstance(saved, list):
            return saved
        kind, *content = saved
        if kind == "constant":
            return current
        if kind == "same":
            return self._values[content[0]]
        if kind == "number":
            return content[0].numpy()[()]
        *content, number = content
        self._values[number] = current  # a part of it may refer to it
        self._values[number] = value = self._restored(kind, current, *content)
        return value

    def _restored(self, kind: str, current: Any, saved: Any, more: Any = None) -> Any:
        if kind == "array":
            return saved.numpy().copy(order="K")
        if kind == "tensor":
            return saved.clone()
        if kind == "dict":
            before = current if isinstance(current, dict) else {}
            pairs = [(self.value(key, None), item) for key, item in saved]
            return {key: self.value(item, before.get(key)) for key, item in pairs}
        if kind in _CONTAINERS:
            now = [*current] if isinstance(current, (list, tuple, deque)) else []
            now += [None] * (len(saved) - len(now))
            items = [self.value(*pair) for pair in zip(saved, now, strict=False)]
            return deque(items, more) if kind == "deque" else _CONTAINERS[kind](items)
        if kind == "generator":
            return _restored_generator(more, self.value(saved, None), current)
        if kind in ("object", "layer") and _class_name(current) != more:
            raise ValueError(f"the environment has no {more} where the saved one has one")
        if kind == "object":
            current.load_state_dict(self.value(saved, None))
        elif kind == "layer":
            attributes = vars(current)  # not setattr, which a frozen dataclass forbids
            for key, content in saved.items():
                attributes[key] = self.value(content, attributes.get(key))
            if isinstance(current, ControlSuite):
                # A step of dm_control ends with mj_step1, whose results its next step uses.
                mujoco.mj_step1(current.model, current.data)
                _load_fields(current.data, saved["data"][1])
        elif kind != "view":
            _load_fields(current, saved)
        elif isinstance(current, np.ndarray) and current.flags.writeable:
            current[...] = saved.numpy()
        return current


def _generator_state(generator: Any) -> tuple[str, Any]:
    if isinstance(generator, np.random.Generator):
        return type(generator.bit_generator).__name__, generator.bit_generator.state
    get = generator.getstate if isinstance(generator, random.Random) else generator.get_state
    return type(generator).__name__, get()


def _restored_generator(kind: str, state: Any, current: Any) -> Any:
    if not isinstance(current, _GENERATORS):
        made = {"Random": random.Random, "Generator": torch.Generator}.get(kind)
        current = made() if made else getattr(np.random, kind)()
        if isinstance(current, np.random.BitGenerator):
            current = np.random.Generator(current)
    if isinstance(current, np.random.Generator):
        current.bit_generator.state = state
    elif isinstance(current, random.Random):
        current.setstate(state)
    else:
        current.set_state(state)
    return current


def _fields(value: Any) -> dict[str, tuple[Any, str]]:
    """The fields to save of a simulation, or of a model, whose bodies and masses a task may change.

    Meshes, textures and their search trees are left out.
    """
    if isinstance(value, mujoco.MjData):
        return {name: (value, name) for name in _SIMULATION}
    fields = {"timestep": (value.opt, "timestep")}
    for owner, prefix in ((value, ""), (value.opt, "opt.")):
        for name in dir(owner):
            array = None if name.startswith(("_", "bvh", "oct")) else getattr(owner, name)
            is_terrain = name == "hfield_data"  # float32, like meshes and textures
            if isinstance(array, np.ndarray) and (array.dtype == np.float64 or is_terrain):
                fields[f"{prefix}{name}"] = (owner, name)
    return fields


def _load_fields(value: Any, saved: dict[str, torch.Tensor]) -> None:
    for name, at in _fields(value).items():
        setattr(*at, saved[name].numpy())  # MuJoCo copies the values into its own arrays
