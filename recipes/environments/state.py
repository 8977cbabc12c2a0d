"""Saving and restoring an environment within an episode."""

from __future__ import annotations

import enum
import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
import torch

from vmfer_recipes.environments.array_values import decode, encode
from vmfer_recipes.environments.dm_control import ControlSuite
from vmfer_recipes.environments.make import Environment
from vmfer_recipes.environments.parts import (
    arrange_parts,
    arrangement_of,
    class_in_memory,
    parts_of,
)
from vmfer_recipes.run.checkpoints import UnsavableError

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
_KINDS, _PARTS, _SAME = "kinds", "parts", "same"  # see environment_state
_SHARED = "shared"
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_MUTABLE = (*_GENERATORS, list, dict, deque, set, torch.Tensor)


def environment_state(env: Environment) -> dict[str, Any]:
    """The full state of an episode: simulator, counters and random generators.

    It is read from the attributes of the environment, of its wrappers, and of objects in them whose
    classes belong to the same package: numbers, strings, arrays, tensors, enumerations, random
    generators, dictionaries, lists, tuples, sets and deques, and every array of a MuJoCo
    simulation. Other objects are assumed to be constant. The result holds plain data only (see
    :func:`~vmfer_recipes.run.checkpoints.plain_data`). Its entry ``"kinds"`` names the arrays
    that share memory, and the classes of objects that an environment may create during an episode;
    ``"parts"`` describes how its objects refer to each other, and ``"same"`` lists attributes whose
    value is that of another one, such as a random generator.
    """
    parts = list(parts_of(env))
    arrays = [
        value for part in parts for value in vars(part).values() if isinstance(value, np.ndarray)
    ]
    users = Counter(id(_owner(array)) for array in arrays)
    shared = [memory for memory, count in users.items() if count > 1]
    state: dict[str, Any] = {}
    kinds: dict[str, list[Any]] = {}
    same: dict[str, str] = {}
    first: dict[int, str] = {}  # the first attribute with a value
    restorable = set()
    for number, part in enumerate(parts):
        for key, value in vars(part).items():
            path = f"{number}.{key}"
            if isinstance(value, _MUTABLE) and first.setdefault(id(value), path) != path:
                same[path] = first[id(value)]
                restorable.add(path)
                continue
            try:
                state[path] = _attribute_state(value)
            except UnsavableError:
                continue  # an object, such as a model or a renderer
            kind = _place(value, shared) or _kind(value)
            if kind:
                kinds[path] = kind
            if _can_be_created(value):
                restorable.add(path)
    arrangement = arrangement_of(parts, restorable)
    return state | {_KINDS: kinds, _PARTS: arrangement, _SAME: same}


def load_environment_state(env: Environment, state: dict[str, Any]) -> None:
    """Restores a saved state in an environment with the same name."""
    parts = arrange_parts(env, state.get(_PARTS))
    kinds = state.get(_KINDS, {})  # earlier versions have none
    memory: dict[int, np.ndarray] = {}
    for path, saved in state.items():
        if path in (_KINDS, _PARTS, _SAME):
            continue
        part, key = _attribute(parts, path)
        kind = kinds.get(path, [])
        if kind and kind[0] == _SHARED:
            vars(part)[key] = _placed(saved.numpy(), memory, *kind[1:])
        else:
            _load_attribute_state(part, key, saved, kind)
    for path, other in state.get(_SAME, {}).items():
        (part, key), (owner, name) = _attribute(parts, path), _attribute(parts, other)
        vars(part)[key] = vars(owner)[name]


def _attribute(parts: list[Any], path: str) -> tuple[Any, str]:
    """The object and the name of a saved attribute."""
    number, key = path.split(".", 1)
    if int(number) >= len(parts):
        raise ValueError(f"the environment has no object for the saved {key!r}")
    return parts[int(number)], key


def reseed_environment(env: Environment, seed: int) -> None:
    """Seeds every random generator of an environment. The current episode continues.

    ``reset(seed=...)`` would start another episode.

    Args:
        env: the environment.
        seed: the seed, from which each generator gets a seed of its own.
    """
    seeds = np.random.SeedSequence(seed)
    for part in parts_of(env):
        for value in vars(part).values():
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


def _attribute_state(value: Any) -> Any:
    if isinstance(value, mujoco.MjData):
        arrays = {name: torch.from_numpy(getattr(value, name).copy()) for name in _SIMULATION}
        return arrays | {"time": value.time}
    if isinstance(value, mujoco.MjModel):  # tasks may move bodies, or change masses
        arrays = {name: torch.from_numpy(array.copy()) for name, array in _parameters(value)}
        return arrays | {"timestep": value.opt.timestep}
    if isinstance(value, np.random.Generator):
        return encode(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return encode(value.get_state())
    if isinstance(value, random.Random):
        return encode(value.getstate())
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, enum.Enum):
        return value.name
    return encode(value)


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


def _place(value: Any, shared: list[int]) -> list[Any]:
    """Where an array lies in memory that other attributes also use; empty if none does."""
    owner = _owner(value)
    is_shared = isinstance(value, np.ndarray) and id(owner) in shared
    if not (is_shared and isinstance(owner, np.ndarray)):
        return []
    offset = value.ctypes.data - owner.ctypes.data
    return [_SHARED, shared.index(id(owner)), owner.nbytes, offset, list(value.strides)]


def _placed(
    saved: np.ndarray,
    memory: dict[int, np.ndarray],
    number: int,
    size: int,
    offset: int,
    strides: list[int],
) -> np.ndarray:
    """The array at a saved :func:`_place`, in memory that the arrays of the same number share."""
    whole = memory.setdefault(number, np.zeros(size, np.uint8))
    array = np.ndarray(saved.shape, saved.dtype, whole, offset, strides)
    array[...] = saved
    return array


def _can_be_created(value: Any) -> bool:
    """Whether a saved attribute can be restored in an object that does not have it."""
    if isinstance(value, (mujoco.MjData, mujoco.MjModel)):
        return False
    if isinstance(value, np.ndarray):
        return isinstance(_owner(value), np.ndarray)  # not a view of a simulation
    return not isinstance(value, (dict, list)) or type(value) in (dict, list)


def _kind(value: Any) -> list[Any]:
    """The class of an object that an environment may not have created yet; empty for others."""
    if isinstance(value, np.random.Generator):
        return [type(value.bit_generator).__name__]
    if isinstance(value, deque):
        return ["deque", value.maxlen]
    if isinstance(value, enum.Enum):
        return ["Enum", type(value).__module__, type(value).__qualname__]
    if isinstance(value, torch.Tensor):
        return ["Tensor"]
    return [type(value).__name__] if isinstance(value, _GENERATORS) else []


def _created(kind: str, *details: Any) -> Any:
    """Creates an object that a saved state belongs to."""
    if kind == "deque":
        return deque(maxlen=details[0])
    if kind == "Enum":
        module, name = details
        found = class_in_memory(module, name)
        if found is None or not issubclass(found, enum.Enum):
            raise ValueError(f"the environment has no enumeration {module}.{name}")
        return next(iter(found))
    makers = {
        "RandomState": np.random.RandomState,
        "Random": random.Random,
        "Generator": torch.Generator,
        "Tensor": torch.Tensor,
    }
    if kind in makers:
        return makers[kind]()
    bits = getattr(np.random, kind, None)
    if not (isinstance(bits, type) and issubclass(bits, np.random.BitGenerator)):
        raise ValueError(f"the random generator {kind} is not known")
    return np.random.Generator(bits())


def _load_attribute_state(part: Any, key: str, saved: Any, kind: list[Any]) -> None:
    attributes = vars(part)  # not setattr, which a frozen dataclass forbids
    value = attributes.get(key)
    if value is None and kind:
        value = _created(*kind)
        attributes[key] = value
    if isinstance(value, mujoco.MjData):
        _load_simulation(value, saved)
        if isinstance(part, ControlSuite):
            # Its step ends with the first half of MuJoCo's step, whose results it uses next.
            mujoco.mj_step1(part.model, value)
            _load_simulation(value, saved)
    elif isinstance(value, mujoco.MjModel):
        value.opt.timestep = saved["timestep"]
        for name, array in _parameters(value):
            array[...] = saved[name].numpy()
    elif isinstance(value, torch.Generator):
        value.set_state(saved)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = decode(saved)
    elif isinstance(value, np.random.RandomState):
        value.set_state(decode(saved))
    elif isinstance(value, random.Random):
        value.setstate(decode(saved))
    elif isinstance(value, enum.Enum):
        attributes[key] = type(value)[saved]
    elif isinstance(value, dict) and type(value) is not dict and isinstance(saved, dict):
        value.clear()  # in place: a defaultdict keeps its default
        value.update(decode(saved))
    elif isinstance(value, deque) and isinstance(saved, list):
        value.clear()
        value.extend(decode(saved))
    elif isinstance(value, torch.Tensor):
        attributes[key] = saved
    elif isinstance(value, np.ndarray) and isinstance(saved, torch.Tensor):
        array = saved.numpy().copy(order="K")
        is_foreign = not isinstance(_owner(value), np.ndarray)
        if is_foreign and value.flags.writeable and value.shape == array.shape:
            value[...] = array  # a view of a simulation
        else:
            attributes[key] = array
    else:
        attributes[key] = decode(saved)


def _load_simulation(data: mujoco.MjData, saved: dict[str, Any]) -> None:
    data.time = saved["time"]
    for name in _SIMULATION:
        getattr(data, name)[...] = saved[name].numpy()
