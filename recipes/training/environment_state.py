"""Saving and restoring an environment within an episode."""

from __future__ import annotations

import enum
import random
import sys
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from vmfer_recipes.training.checkpoints import UnsavableError, plain_data
from vmfer_recipes.training.dm_control import ControlSuite
from vmfer_recipes.training.environments import Environment

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
# Libraries whose objects, other than environments, are taken for constant.
_LIBRARIES = ("gymnasium", "gymnasium_robotics", "dm_control", "vmfer_recipes")
_KINDS, _SHARED = "kinds", "shared"  # see environment_state
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
# Attributes of these types are saved as a whole.
_SAVED_WHOLE = (
    *(dict, list, tuple, set, deque, enum.Enum, np.ndarray, torch.Tensor, random.Random),
    *(mujoco.MjData, mujoco.MjModel),
)


def environment_state(env: Environment) -> dict[str, Any]:
    """The full state of an episode: simulator, counters and random generators.

    It is read from the attributes of the environment, of its wrappers, and of objects in them whose
    classes belong to the same package: numbers, strings, arrays, tensors, enumerations, random
    generators, dictionaries, lists, tuples, sets and deques, and every array of a MuJoCo
    simulation. Other objects are assumed to be constant. The result holds plain data only (see
    :func:`~vmfer_recipes.training.checkpoints.plain_data`). Its entry ``"kinds"`` names the arrays
    that share memory, and the classes of objects that an environment may create during an episode.
    """
    layers = list(_layers(env))
    users = Counter(_memory(value) for layer in layers for value in vars(layer).values())
    state: dict[str, Any] = {}
    kinds: dict[str, list[Any]] = {}
    for depth, layer in enumerate(layers):
        for key, value in vars(layer).items():
            path = f"{depth}.{key}"
            try:
                state[path] = _attribute_state(value)
            except UnsavableError:
                continue  # an object, such as a model or a renderer
            kind = [_SHARED] if _is_shared(value, users) else _kind(value)
            if kind:
                kinds[path] = kind
    return state | {_KINDS: kinds}


def load_environment_state(env: Environment, state: dict[str, Any]) -> None:
    """Restores a saved state in an environment with the same name."""
    layers = list(_layers(env))
    kinds = state.get(_KINDS, {})  # earlier versions have none
    for path, saved in state.items():
        if path == _KINDS:
            continue
        depth, key = path.split(".", 1)
        if int(depth) >= len(layers):
            raise ValueError(f"the environment has no object for the saved {key!r}")
        _load_attribute_state(layers[int(depth)], key, saved, kinds.get(path, []))


def reseed_environment(env: Environment, seed: int) -> None:
    """Seeds every random generator of an environment. The current episode continues.

    ``reset(seed=...)`` would start another episode.

    Args:
        env: the environment.
        seed: the seed, from which each generator gets a seed of its own.
    """
    seeds = np.random.SeedSequence(seed)
    for layer in _layers(env):
        for value in vars(layer).values():
            if isinstance(value, _GENERATORS):
                _seed_generator(value, int(seeds.spawn(1)[0].generate_state(1)[0]))


def _seed_generator(generator: Any, seed: int) -> None:
    # In place: several objects may share a generator.
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)


class EnvironmentPart:
    """The state of an environment as a part of a checkpoint.

    Args:
        env: the environment.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env

    def state_dict(self) -> dict[str, Any]:
        """The full state, as :func:`environment_state` defines it."""
        return environment_state(self._env)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        load_environment_state(self._env, state)


def _layers(env: Environment) -> Iterator[Any]:
    """The wrappers of an environment, the environment, and the stateful objects in it."""
    waiting: list[Any] = [env.simulator]
    seen: set[int] = set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        for value in vars(layer).values():
            items = value.values() if isinstance(value, dict) else value
            is_container = isinstance(value, (dict, list, tuple))
            waiting += [
                each for each in (items if is_container else [value]) if _is_part(each, layer)
            ]


def _is_part(value: Any, layer: Any) -> bool:
    """Whether an object in the attributes of another has attributes that may change."""
    if isinstance(value, (gym.Env, RunningMeanStd)):  # the latter: of NormalizeReward
        return True
    if isinstance(value, _SAVED_WHOLE) or not hasattr(value, "__dict__"):
        return False
    package = _package(value)
    if isinstance(layer, ControlSuite):
        return package == "dm_control"
    return package == _package(layer) and package not in _LIBRARIES


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _attribute_state(value: Any) -> Any:
    if isinstance(value, mujoco.MjData):
        arrays = {name: torch.from_numpy(getattr(value, name).copy()) for name in _SIMULATION}
        return arrays | {"time": value.time}
    if isinstance(value, mujoco.MjModel):  # tasks may move bodies, or change masses
        arrays = {name: torch.from_numpy(array.copy()) for name, array in _parameters(value)}
        return arrays | {"timestep": value.opt.timestep}
    if isinstance(value, np.random.Generator):
        return _encode(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _encode(value.get_state())
    if isinstance(value, random.Random):
        return _encode(value.getstate())
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, enum.Enum):
        return value.name
    return _encode(value)


def _parameters(model: mujoco.MjModel) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers of a MuJoCo model, without meshes, pictures and their search trees."""
    for part, prefix in ((model, ""), (model.opt, "opt.")):
        for name in dir(part):
            if not name.startswith(("_", "bvh", "oct")):
                value = getattr(part, name)
                if isinstance(value, np.ndarray) and value.dtype == np.float64:
                    yield f"{prefix}{name}", value


def _owner(value: Any) -> Any:
    """The object whose memory an array uses: an array, or for instance a simulation."""
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return value


def _memory(value: Any) -> int:
    """Identifies the memory that an array or tensor uses; 0 for other values."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr()
    return id(_owner(value)) if isinstance(value, np.ndarray) else 0


def _is_shared(value: Any, users: Counter[int]) -> bool:
    """Whether an array or tensor uses the memory of another attribute, or of another object."""
    memory = _memory(value)
    is_foreign = isinstance(value, np.ndarray) and not isinstance(_owner(value), np.ndarray)
    return memory != 0 and (users[memory] > 1 or is_foreign)


def _kind(value: Any) -> list[Any]:
    """How to make an object to restore a state into; empty if the state is all that matters."""
    if isinstance(value, np.random.Generator):
        return [type(value.bit_generator).__name__]
    if isinstance(value, deque):
        return ["deque", value.maxlen]
    if isinstance(value, enum.Enum):
        return ["Enum", type(value).__module__, type(value).__qualname__]
    return [type(value).__name__] if isinstance(value, _GENERATORS) else []


def _made(kind: str, *details: Any) -> Any:
    """Makes an object to restore a state into, where the environment makes it only later."""
    if kind == "deque":
        return deque(maxlen=details[0])
    if kind == "Enum":
        module, name = details
        found: Any = sys.modules.get(module)  # a checkpoint must not import anything
        for part in name.split("."):
            found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, enum.Enum)):
            raise ValueError(f"the environment has no enumeration {module}.{name}")
        return next(iter(found))
    makers = {"RandomState": np.random.RandomState, "Random": random.Random}
    if kind in makers:
        return makers[kind]()
    if kind == "Generator":
        return torch.Generator()
    bits = getattr(np.random, kind, None)
    if not (isinstance(bits, type) and issubclass(bits, np.random.BitGenerator)):
        raise ValueError(f"the random generator {kind} is not known")
    return np.random.Generator(bits())


def _load_attribute_state(layer: Any, key: str, saved: Any, kind: list[Any]) -> None:
    value = getattr(layer, key, None)
    if value is None and kind and kind[0] != _SHARED:
        value = _made(*kind)
        setattr(layer, key, value)
    if isinstance(value, mujoco.MjData):
        _load_simulation(value, saved)
        if isinstance(layer, ControlSuite):
            # Its step ends with the first half of MuJoCo's step, whose results it uses next.
            mujoco.mj_step1(layer.model, value)
            _load_simulation(value, saved)
    elif isinstance(value, mujoco.MjModel):
        value.opt.timestep = saved["timestep"]
        for name, array in _parameters(value):
            array[...] = saved[name].numpy()
    elif isinstance(value, torch.Generator):
        value.set_state(saved)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = _decode(saved)
    elif isinstance(value, np.random.RandomState):
        value.set_state(_decode(saved))
    elif isinstance(value, random.Random):
        value.setstate(_decode(saved))
    elif isinstance(value, enum.Enum):
        setattr(layer, key, type(value)[saved])
    elif isinstance(value, dict) and type(value) is not dict and isinstance(saved, dict):
        value.clear()  # in place: a defaultdict keeps its default
        value.update(_decode(saved))
    elif isinstance(value, deque) and isinstance(saved, list):
        value.clear()
        value.extend(_decode(saved))
    elif isinstance(value, (np.ndarray, torch.Tensor)) and isinstance(saved, torch.Tensor):
        _load_array(layer, key, value, saved, is_shared=kind == [_SHARED])
    else:
        setattr(layer, key, _decode(saved))


def _load_array(
    layer: Any, key: str, value: np.ndarray | torch.Tensor, saved: torch.Tensor, is_shared: bool
) -> None:
    array = saved if isinstance(value, torch.Tensor) else saved.numpy().copy()
    can_hold = value.shape == array.shape and value.dtype == array.dtype
    is_writable = isinstance(value, torch.Tensor) or value.flags.writeable
    if is_shared and can_hold and is_writable:
        value[...] = array  # in place: other attributes use the same memory
    else:
        setattr(layer, key, array)


def _load_simulation(data: mujoco.MjData, saved: dict[str, Any]) -> None:
    data.time = saved["time"]
    for name in _SIMULATION:
        getattr(data, name)[...] = saved[name].numpy()


def _encode(value: Any) -> Any:
    # Tensors keep the data type of NumPy numbers, which affects rounding.
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))
    if isinstance(value, dict):
        return {plain_data(key): _encode(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return [_encode(item) for item in value]
    if type(value) is tuple:
        return tuple(_encode(item) for item in value)
    return plain_data(value)


def _decode(saved: Any) -> Any:
    if isinstance(saved, torch.Tensor):
        array = saved.numpy().copy()
        return array if array.ndim else array[()]
    if isinstance(saved, dict):
        return {key: _decode(item) for key, item in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(map(_decode, saved))
    return saved
