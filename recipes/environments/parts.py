"""The objects that an environment consists of, and how they refer to each other."""

from __future__ import annotations

import enum
import random
import sys
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from vmfer_recipes.environments.array_values import decode, encode
from vmfer_recipes.environments.dm_control import ControlSuite
from vmfer_recipes.environments.make import Environment
from vmfer_recipes.run.checkpoints import UnsavableError

__all__ = ["arrange_parts", "arrangement_of", "class_in_memory", "parts_of"]

# Libraries whose objects, other than environments, are assumed to be constant.
_LIBRARIES = ("gymnasium", "gymnasium_robotics", "dm_control", "vmfer_recipes")
# Attributes of these types are saved as a whole.
_SAVED_WHOLE = (
    *(dict, list, tuple, set, deque, enum.Enum, np.ndarray, torch.Tensor, random.Random),
    *(mujoco.MjData, mujoco.MjModel),
)


def parts_of(env: Environment) -> Iterator[Any]:
    """The wrappers of an environment, the environment, and the stateful objects in it."""
    waiting: list[Any] = [env.simulator]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for value in vars(part).values():
            waiting += [each for each in _items(value) if _is_part(each, part)]


def _items(value: Any) -> list[Any]:
    """A value, or what is in it if it is a container, at any depth."""
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, (list, tuple, deque)):
        return [value]
    return [item for each in value for item in _items(each)]


def _is_part(value: Any, owner: Any) -> bool:
    """Whether an object in the attributes of another has attributes that may change."""
    if isinstance(value, (gym.Env, RunningMeanStd)):  # the latter: of NormalizeReward
        return True
    if isinstance(value, _SAVED_WHOLE) or not hasattr(value, "__dict__"):
        return False
    package = _package(type(value))
    if isinstance(owner, ControlSuite):
        return package == "dm_control"
    return package == _package(type(owner)) and package not in _LIBRARIES


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def arrangement_of(parts: list[Any], restorable: Collection[str]) -> dict[str, Any]:
    """How the parts of an environment refer to each other, as plain data.

    Args:
        parts: the parts.
        restorable: the attributes that can be restored in an object that is created for it, as
            ``"2.position"`` with the number of the part.

    Returns:
        by number of the part: the classes, the attributes that refer to parts, and one of the other
        attributes that cannot be restored, if there is any.
    """
    numbers = {id(part): number for number, part in enumerate(parts)}
    links: list[dict[str, Any]] = []
    fixed: list[str | None] = []
    seen: set[int] = set()  # containers: each is described once
    for number, part in enumerate(parts):
        own = {}
        for key, value in vars(part).items():
            is_new = id(value) in numbers or id(value) not in seen
            if is_new and any(id(each) in numbers for each in _items(value)):
                seen.add(id(value))
                try:
                    own[key] = _link(value, numbers)
                except UnsavableError:
                    continue
        known = {key for key in vars(part) if f"{number}.{key}" in restorable} | own.keys()
        links.append(own)
        fixed.append(next((key for key in vars(part) if key not in known), None))
    return {"classes": [_class_of(part) for part in parts], "links": links, "fixed": fixed}


def _link(value: Any, numbers: dict[int, int]) -> list[Any]:
    if id(value) in numbers:
        return ["part", numbers[id(value)]]
    if type(value) is dict:
        items = [[encode(key), _link(item, numbers)] for key, item in value.items()]
        return ["dict", items]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_link(item, numbers) for item in value]]
    if type(value) is deque:
        return ["deque", [["value", value.maxlen], *(_link(item, numbers) for item in value)]]
    return ["value", encode(value)]


def arrange_parts(env: Environment, saved: dict[str, Any] | None) -> list[Any]:
    """Makes the parts of an environment refer to each other as in a saved arrangement.

    Missing objects are created. Attributes that do not refer to objects are left as they are.

    Returns:
        the parts, in the order of the arrangement.
    """
    present = list(parts_of(env))
    if saved is None:  # earlier versions
        return present
    return _Assignment(present, saved).parts()


class _Assignment:
    """Assigns objects to the parts of a saved arrangement.

    If the arrangement has changed, it does not matter which of several objects of a class becomes
    which part, provided that all their attributes are restored. Otherwise there may be only one.
    """

    def __init__(self, present: list[Any], saved: dict[str, Any]) -> None:
        self._present = present
        self._saved = saved
        self._classes = saved["classes"]
        self._is_same = _shape(arrangement_of(present, ())) == _shape(saved)
        self._parts = dict(enumerate(present if self._is_same else present[:1]))
        self._used = {*map(id, self._parts.values())}

    def parts(self) -> list[Any]:
        """Sets all references and returns the parts."""
        if not self._is_same:
            self._check_fixed()
        for number, links in enumerate(self._saved["links"]):
            if number not in self._parts:  # the attribute that refers to it cannot be saved
                self._assign(number, None, None)
            part = self._parts[number]
            for key, link in links.items():
                vars(part)[key] = self._value(link, vars(part).get(key), part)
        return [self._parts[number] for number in range(len(self._classes))]

    def _check_fixed(self) -> None:
        wrappers = [*_wrappers(self._present[0])]
        others = [part for part in self._present if not any(part is each for each in wrappers)]
        for kind, key in zip(self._classes, self._saved["fixed"], strict=True):
            counts = self._classes.count(kind), [*map(_class_of, others)].count(kind)
            is_wrapper = counts[1] == 0 and kind in map(_class_of, wrappers)
            if key is not None and not is_wrapper and counts != (1, 1):
                raise ValueError(
                    f"the saved state has a different arrangement of {kind[1]} objects, whose "
                    f"attribute {key!r} cannot be restored: create it when it is needed, or keep "
                    "the number of these objects fixed"
                )

    def _value(self, link: list[Any], current: Any, owner: Any) -> Any:
        kind, content = link
        if kind == "part":
            if content not in self._parts:
                self._assign(content, current, owner)
            return self._parts[content]
        if kind == "value":
            return decode(content)
        if kind == "dict":
            return self._dict(content, current, owner)
        if kind == "deque":
            (_, maxlen), *content = content
            items = self._value(["list", content], [*(current or ())], owner)
            return deque(items, maxlen)
        values = [*current] if isinstance(current, (list, tuple)) else []
        missing = [None] * (len(content) - len(values))
        pairs = zip(content, [*values, *missing], strict=False)
        found = [self._value(item, value, owner) for item, value in pairs]
        if kind == "tuple":
            return tuple(found)
        if type(current) is not list:
            return found
        current[:] = found  # in place: other objects may refer to the same list
        return current

    def _dict(self, content: list[Any], current: Any, owner: Any) -> dict[Any, Any]:
        known = current if type(current) is dict else {}
        keys = [decode(key) for key, _ in content]
        found = {
            key: self._value(item, known.get(key), owner)
            for key, (_, item) in zip(keys, content, strict=True)
        }
        known.clear()
        known.update(found)
        return known

    def _assign(self, number: int, current: Any, owner: Any) -> None:
        kind = self._classes[number]
        for candidate in (current, *self._present):
            if _class_of(candidate) == kind and id(candidate) not in self._used:
                break
        else:
            candidate = _created(kind, owner)
        self._parts[number] = candidate
        self._used.add(id(candidate))


def _wrappers(env: Any) -> Iterator[Any]:
    """An environment and those inside it, which are always the same."""
    while env is not None:
        yield env
        env = vars(env).get("env")


def _shape(arrangement: dict[str, Any]) -> list[Any]:
    """Classes and links of an arrangement, without the values in it."""
    links = [
        {key: _without_values(link) for key, link in own.items()} for own in arrangement["links"]
    ]
    return [arrangement["classes"], links]


def _without_values(link: list[Any]) -> list[Any]:
    kind, content = link
    if kind == "value":
        return ["value"]
    if kind == "part":
        return link
    if kind == "dict":
        return ["dict", *([repr(key), _without_values(item)] for key, item in content)]
    return [kind, *map(_without_values, content)]


def _class_of(value: Any) -> list[str]:
    return [type(value).__module__, type(value).__qualname__]


def _created(kind: list[str], owner: Any) -> Any:
    """Creates an object without attributes. Its class must belong to the package of its owner."""
    found = class_in_memory(*kind)
    if found is None or owner is None or _package(found) != _package(type(owner)):
        raise ValueError(
            f"the environment has no {kind[1]} object, and none can be created from a checkpoint"
        )
    return found.__new__(found)


def class_in_memory(module: str, name: str) -> Any:
    """A class of an imported module, or ``None``: a checkpoint must not import anything."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
