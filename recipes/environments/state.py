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
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch

from vmfer_recipes.environments.make import Environment

_SIMULATORS = (mujoco.MjData, mujoco.MjModel)
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
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# Classes whose attributes are saved. The second one holds the statistics of NormalizeReward.
_LAYERS = (gym.Env, gym.wrappers.utils.RunningMeanStd)
# Libraries whose spaces, specifications, models and renderers are constant.
_CONSTANT = {"gymnasium", "gymnasium_robotics", "mujoco", "dm_control", "dm_env", "pygame"}


def environment_state(env: Environment) -> dict[str, Any]:
    """The full state of an episode as plain data, or only ``{"unsaved": attribute}``."""
    writer = _Writer()
    state = writer.value(env.simulator, "")
    return {"unsaved": writer.unsaved[0]} if writer.unsaved else {"saved": state}


def load_environment_state(env: Environment, state: dict[str, Any]) -> None:
    """Restores a saved state, if there is one. Otherwise the episode restarts."""
    if "saved" in state:
        _restored(state["saved"], env.simulator, {})


def derived_seed(*numbers: int) -> int:
    """Returns a seed that depends on several numbers, and that similar runs do not use."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def seed_generators(seed: int) -> None:
    """Seeds all three global generators: an environment or a library may use any of them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def reseed_environment(env: Environment, seed: int) -> None:
    """Seeds every random generator of an environment, each differently. The episode continues."""
    writer = _Writer()
    writer.value(env.simulator, "")
    generators: list[Any] = [each for each in writer.found if isinstance(each, _GENERATORS)]
    seeds = np.random.SeedSequence(seed).spawn(len(generators))
    for generator, sequence in zip(generators, seeds, strict=True):
        number = int(sequence.generate_state(1)[0])
        # In place: several objects may share a generator.
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(number).state
        else:
            getattr(generator, "manual_seed", generator.seed)(number)


def _is_constant(value: Any) -> bool:
    package = type(value).__module__.partition(".")[0]
    is_fixed = isinstance(value, (*_CODE, np.dtype, gym.Space)) or package in _CONSTANT
    return is_fixed and not isinstance(value, (*_SIMULATORS, *_LAYERS))


def _is_view(value: Any) -> bool:
    """Whether an array shows memory of C++ code, such as that of a simulation."""
    while isinstance(value, np.ndarray):
        value = value.base
    return type(value).__name__ == "PyCapsule"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class _Writer:
    """Converts values to plain data. An object that occurs twice is saved once."""

    def __init__(self) -> None:
        self.found: list[Any] = []  # numbered by position; as they are kept, their ids stay unique
        self.unsaved: list[str] = []  # the places of objects that cannot be saved
        self._numbers: dict[int, int] = {}  # by id
        self._arrays: list[tuple[np.ndarray, str]] = []  # each with its place

    def value(self, value: Any, place: str) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, np.str_):
            return str(value)
        if _is_constant(value):
            return ["constant"]
        if id(value) in self._numbers:
            return ["same", self._numbers[id(value)]]
        self._numbers[id(value)] = number = len(self.found)
        self.found.append(value)
        return [*self._content(value, place), number]

    def _content(self, value: Any, place: str) -> list[Any]:
        name = type(value).__name__
        if access := _access(value):
            return ["object", self.value(access[0](), name), _name(type(value))]
        if type(value) is torch.Tensor:
            return ["tensor", value.detach().clone()]
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return ["number", torch.from_numpy(np.array(value))]
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            for other, at in [] if _is_view(value) else self._arrays:
                if np.may_share_memory(value, other):
                    self.unsaved.append(f"{place} (shares memory with {at})")
            self._arrays.append((value, place))
            return ["view" if _is_view(value) else "array", torch.from_numpy(np.array(value))]
        if type(value) is dict:
            pairs = [(self.value(key, place), key, item) for key, item in value.items()]
            return ["dict", [[key, self.value(item, f"{place}.{at}")] for key, at, item in pairs]]
        if type(value) in _CONTAINERS.values():
            items = sorted(value, key=repr) if isinstance(value, set) else value
            content = [self.value(item, place) for item in items]
            return [name, content, getattr(value, "maxlen", None)]
        self.unsaved.append(f"{place} ({name})")
        return ["constant"]


def _restored(saved: Any, current: Any, known: dict[int, Any]) -> Any:
    """Restores a value that a :class:`_Writer` saved, in place where there are references.

    The values that are already ``known`` have the numbers of the writer.
    """
    if not isinstance(saved, list):
        return saved
    kind, *content = saved
    if kind == "constant":
        return current
    if kind == "same":
        return known[content[0]]
    data, *more, number = content
    known[number] = current  # a part of it may refer to it
    if kind == "object":
        # Gymnasium creates `np_random` at its first use.
        value = np.random.default_rng() if current is None else current
        access = _access(value)
        if access is None or more != [_name(type(value))]:
            raise ValueError(f"the environment has no {more[0]} where the saved one has one")
        access[1](_restored(data, access[0](), known))
    elif kind == "dict":
        now = current if isinstance(current, dict) else {}
        pairs = [(_restored(key, None, known), item) for key, item in data]
        value = {key: _restored(item, now.get(key), known) for key, item in pairs}
    elif kind in _CONTAINERS:
        parts = chain(current if isinstance(current, (list, tuple, deque)) else (), repeat(None))
        items = [_restored(item, part, known) for item, part in zip(data, parts, strict=False)]
        value = deque(items, *more) if kind == "deque" else _CONTAINERS[kind](items)
    elif kind == "view" and _is_view(current):
        if current.flags.writeable:
            current[...] = data.numpy()
        value = current
    elif kind == "number":
        value = data.numpy()[()]
    else:
        value = data.clone() if kind == "tensor" else data.numpy().copy(order="K")
    known[number] = value
    return value


def _access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """The functions that return and load the state of an object; ``None`` if it has no state."""
    if all(callable(getattr(type(value), f"{name}state_dict", 0)) for name in ("", "load_")):
        return value.state_dict, value.load_state_dict
    if isinstance(value, np.random.Generator):
        generator = value.bit_generator
        return lambda: generator.state, lambda state: setattr(generator, "state", state)
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, (np.random.RandomState, torch.Generator)):
        return value.get_state, value.set_state
    if isinstance(value, _SIMULATORS):
        return partial(simulation_state, value), partial(load_simulation, value)
    if isinstance(value, _LAYERS):
        attributes = {key: item for key, item in vars(value).items() if not _is_constant(item)}
        return attributes.copy, vars(value).update  # not setattr, which frozen dataclasses forbid
    return None


def simulation_state(value: Any) -> dict[str, torch.Tensor]:
    """The state of a MuJoCo simulation or model."""
    return {key: torch.from_numpy(np.array(getattr(*at))) for key, at in _fields(value).items()}


def load_simulation(value: Any, saved: dict[str, torch.Tensor]) -> None:
    """Restores the state of a MuJoCo simulation or model."""
    for key, at in _fields(value).items():
        setattr(*at, saved[key].numpy())  # MuJoCo copies the values into its own arrays


def _fields(value: Any) -> dict[str, tuple[Any, str]]:
    """The state of a simulation, or what a task may change in a model: no meshes and textures."""
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
