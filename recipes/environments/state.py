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
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from vmfer_recipes.environments.dm_control import ControlSuite
from vmfer_recipes.environments.make import Environment

__all__ = [
    "EnvironmentPart",
    "environment_state",
    "load_environment_state",
    "reseed_environment",
]

# MuJoCo's definition of a state (the first two lines) omits the positions, velocities and forces of
# the last step, which affect the rewards and observations of the next step.
_SIMULATION = (
    *("qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "plugin_state"),
    *("qacc", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "subtree_com", "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext"),
    *("qfrc_actuator", "actuator_force", "sensordata"),
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, deque)}
_SIMULATORS = (mujoco.MjData, mujoco.MjModel)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# Libraries whose spaces, specifications, models and renderers are constant.
_CONSTANT = {"gymnasium", "gymnasium_robotics", "mujoco", "dm_control", "dm_env", "pygame"}


class _UnsavedError(Exception):
    """Raised with a description of what cannot be saved."""


def environment_state(env: Environment) -> dict[str, Any]:
    """The full state of an episode as plain data, or only ``{"unsaved": attribute}``."""
    writer = _Writer()
    try:
        return {"layers": [writer.layer(layer) for layer in _layers(env.simulator)]}
    except _UnsavedError as error:
        return {"unsaved": str(error)}


def load_environment_state(env: Environment, state: dict[str, Any]) -> bool:
    """Restores a saved state. Returns whether there was one: otherwise the episode restarts."""
    if "unsaved" in state:
        return False
    # An environment may create others when it starts an episode, so that each layer comes in turn.
    layers, reader = _layers(env.simulator), _Reader()
    for saved in state["layers"]:
        layer = next(layers, None)
        if _class_name(layer) != saved["class"]:
            raise ValueError(f"the environment has no {saved['class']} where the saved one has it")
        reader.layer(layer, saved)
    return True


def reseed_environment(env: Environment, seed: int) -> None:
    """Seeds every random generator of an environment, each differently. The episode continues."""
    seeds = np.random.SeedSequence(seed)
    for layer in _layers(env.simulator):
        for value in vars(layer).values():
            if isinstance(value, _GENERATORS):
                number = int(seeds.spawn(1)[0].generate_state(1)[0])
                # In place: several objects may share a generator.
                if isinstance(value, np.random.Generator):
                    value.bit_generator.state = type(value.bit_generator)(number).state
                elif isinstance(value, torch.Generator):
                    value.manual_seed(number)
                else:
                    value.seed(number)


class EnvironmentPart:
    """The state of an environment as a part of a checkpoint."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def state_dict(self) -> dict[str, Any]:
        """The full state, as :func:`environment_state` defines it."""
        return environment_state(self._env)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        load_environment_state(self._env, state)


def _layers(simulator: Any) -> Iterator[Any]:
    """The wrappers, the environment, and what these hold that has attributes to save."""
    waiting, seen = [simulator], list[Any]()
    while waiting:
        layer = waiting.pop()
        if any(layer is each for each in seen):
            continue
        seen.append(layer)
        yield layer
        if not _has_methods(layer):
            waiting += [value for value in vars(layer).values() if _is_layer(value, layer)]


def _is_layer(value: Any, owner: Any) -> bool:
    if isinstance(value, (gym.Env, RunningMeanStd)):  # the latter: of NormalizeReward
        return True
    return isinstance(owner, ControlSuite) and _package(value) == "dm_control"


def _is_constant(value: Any) -> bool:
    if isinstance(value, (*_SIMULATORS, gym.Env)):
        return False
    return isinstance(value, (*_CODE, np.dtype, gym.Space)) or _package(value) in _CONSTANT


def _has_methods(value: Any) -> bool:
    return all(callable(getattr(type(value), f"{name}state_dict", 0)) for name in ("", "load_"))


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Writer:
    """Converts attributes to plain data. What occurs twice is saved once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # numbers of mutable values
        self._kept: list[Any] = []  # so that no id is used twice
        self._memory: dict[int, str] = {}  # the arrays' owners, and where they were seen

    def layer(self, layer: Any) -> dict[str, Any]:
        name = type(layer).__name__
        if _has_methods(layer):
            state = self.value(layer.state_dict(), f"{name}.state_dict()")
            return {"class": _class_name(layer), "state": state}
        attributes = {
            key: self.value(value, f"{name}.{key}")
            for key, value in vars(layer).items()
            if not _is_layer(value, layer) and not _is_constant(value)
        }
        return {"class": _class_name(layer), "attributes": attributes}

    def value(self, value: Any, place: str) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, np.str_):
            return str(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return ["number", torch.from_numpy(np.array(value))]
        if _is_constant(value):
            return ["constant"]
        if id(value) in self._seen:
            return ["same", self._seen[id(value)]]
        number = self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return [*self._content(value, place), number]

    def _content(self, value: Any, place: str) -> list[Any]:
        if isinstance(value, _SIMULATORS):
            arrays = {name: torch.from_numpy(array.copy()) for name, array in _arrays(value)}
            owner, time = _clock(value)
            kind = "simulation" if owner is value else "model"
            return [kind, arrays | {time: getattr(owner, time)}]
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            return ["generator", type(bits).__name__, self.value(bits.state, place)]
        if isinstance(value, random.Random):
            return ["generator", "Random", self.value(value.getstate(), place)]
        if isinstance(value, (np.random.RandomState, torch.Generator)):
            return ["generator", type(value).__name__, self.value(value.get_state(), place)]
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
        if _has_methods(value):
            return ["object", self.value(value.state_dict(), place)]
        raise _UnsavedError(f"{place} ({type(value).__name__})")

    def _array_kind(self, value: np.ndarray, place: str) -> str:
        owner: Any = value
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if not isinstance(owner, np.ndarray):
            return "view"  # of a simulation
        if id(owner) in self._memory:
            raise _UnsavedError(f"{place} (shares memory with {self._memory[id(owner)]})")
        self._memory[id(owner)] = place
        self._kept.append(owner)
        return "array"


class _Reader:
    """Restores attributes from the output of :class:`_Writer`."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._used: list[Any] = []  # generators that have their state

    def layer(self, layer: Any, saved: dict[str, Any]) -> None:
        if "state" in saved:
            return layer.load_state_dict(self.value(saved["state"], None))
        attributes = vars(layer)  # not setattr, which a frozen dataclass forbids
        for key, content in saved["attributes"].items():
            value = attributes[key] = self.value(content, attributes.get(key))
            if isinstance(value, mujoco.MjData) and isinstance(layer, ControlSuite):
                # Its step ends with the first half of MuJoCo's step, whose results it uses next.
                mujoco.mj_step1(layer.model, value)
                _load_arrays(value, content[1])

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
        self._values[number] = value = self._restored(kind, content, current)
        return value

    def _restored(self, kind: str, content: list[Any], current: Any) -> Any:
        saved = content[0]
        if kind == "generator":
            return self._generator(saved, self.value(content[1], None), current)
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
            return deque(items, content[1]) if kind == "deque" else _CONTAINERS[kind](items)
        if kind in ("simulation", "model"):
            _load_arrays(current, saved)
        elif kind == "object":
            current.load_state_dict(self.value(saved, None))
        elif isinstance(current, np.ndarray) and current.flags.writeable:  # a view
            current[...] = saved.numpy()
        return current

    def _generator(self, kind: str, state: Any, current: Any) -> Any:
        # In place, unless two generators were one when the environment was made.
        if not isinstance(current, _GENERATORS) or any(current is each for each in self._used):
            made = {"Random": random.Random, "Generator": torch.Generator}.get(kind)
            current = made() if made else getattr(np.random, kind)()
            if isinstance(current, np.random.BitGenerator):
                current = np.random.Generator(current)
        self._used.append(current)
        if isinstance(current, np.random.Generator):
            current.bit_generator.state = state
        elif isinstance(current, random.Random):
            current.setstate(state)
        else:
            current.set_state(state)
        return current


def _arrays(value: mujoco.MjData | mujoco.MjModel) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a simulation, or of a model, in which tasks may move bodies or change masses.

    Meshes, pictures and their search trees are left out.
    """
    if isinstance(value, mujoco.MjData):
        yield from ((name, getattr(value, name)) for name in _SIMULATION)
        return
    for part, prefix in ((value, ""), (value.opt, "opt.")):
        for name in dir(part):
            array = None if name.startswith(("_", "bvh", "oct")) else getattr(part, name)
            is_terrain = name == "hfield_data"  # of float32, as meshes and pictures
            if isinstance(array, np.ndarray) and (array.dtype == np.float64 or is_terrain):
                yield f"{prefix}{name}", array


def _clock(value: mujoco.MjData | mujoco.MjModel) -> tuple[Any, str]:
    return (value, "time") if isinstance(value, mujoco.MjData) else (value.opt, "timestep")


def _load_arrays(value: mujoco.MjData | mujoco.MjModel, saved: dict[str, Any]) -> None:
    owner, time = _clock(value)
    setattr(owner, time, saved[time])
    for name, array in _arrays(value):
        array[...] = saved[name].numpy()
