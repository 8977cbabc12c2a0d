"""Configuration keys as dataclass fields, the single source for validation and help."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from torchrl_vmfer.arguments import Argument
from vmfer_recipes.config.names import folder_name

__all__ = [
    *("MISSING", "Config", "Key", "PartConfig", "argument", "describe", "group", "groups", "key"),
    *("other_default", "recipe_schemas", "schema", "schemas_of", "target"),
]

OmegaConf.register_new_resolver("folder", folder_name, replace=True)  # for run_dir

_LARGEST = 10**9  # larger numbers overflow somewhere in PyTorch or NumPy
_SCHEMAS: dict[str, dict[str, type[Config]]] = {}  # config classes by group; recipes are in ""
_DESCRIBED: dict[type[Config], tuple[Key, ...]] = {}
_NO_ARGUMENTS = ("_target_", "name")
_Class = TypeVar("_Class", bound="type[Config]")


class Config:
    """Base class of all configuration dataclasses, of recipes and of their groups.

    Recipes read a configuration as plain attributes, which is fast enough for a training loop.
    """

    def as_dict(self) -> dict[str, Any]:
        """The configuration as nested dictionaries."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def check(self) -> None:
        """Raises ``UserError`` if individually valid values are incompatible."""


@dataclass(frozen=True)
class Key:
    """One configuration key: a row of ``--help`` and of the documentation.

    Attributes:
        name: the dotted name, as on the command line.
        types: the allowed types. A ``dict`` has keys of the user's choice: ``env.kwargs.gain=2``.
        items: the type of the items of a list.
        default: the default value, or ``MISSING``.
        meaning: what the key does, in one line.
        low: the smallest number.
        high: the largest number.
        choices: the allowed strings. Values of the other types are allowed as well.
        aka: names under which users of other libraries look for this key.
        only: the choices of a group that define this key, if not all do.
    """

    name: str
    types: tuple[type, ...]
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    aka: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    items: type = int

    @property
    def is_fixed(self) -> bool:
        """Whether the recipe or the choice of a group determines the key."""
        is_only = self.types == (str,) and self.choices == (self.default,)
        return is_only or self.name == "algorithm" or self.name.endswith("_target_")

    @property
    def range(self) -> str:
        """The allowed values in the short form of a table; empty if all values are allowed."""
        parts = [*self.choices]
        if self._is_numeric and (self.low, self.high) != (None, None):
            bounds = f"≥ {self._least:.10g}" if self.high is None else self._bounds
            parts.append(f"each {bounds}" if list in self.types else bounds)
        return ", ".join(parts)

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        parts = [*self.choices]
        if bool in self.types:
            parts.append("true or false")
        elif list in self.types and self.items is int:
            parts.append(f"a list of whole numbers from {self._bounds}, such as [100,200]")
        elif list in self.types:
            parts.append("a list of strings, such as [a,b]")
        elif dict in self.types:
            parts.append("a dictionary, such as {a: 1, b: 2}")
        elif float in self.types:
            parts.append(f"a number from {self._bounds}")
        elif int in self.types:
            parts.append(f"a whole number from {self._bounds}")
        elif not self.choices:
            parts.append("a non-empty string")
        if types.NoneType in self.types:
            parts.append("null")
        *first, last = parts
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def _is_numeric(self) -> bool:
        return bool({int, float, list} & {*self.types}) and self.items is int

    @property
    def _least(self) -> float:
        return -_LARGEST if self.low is None else self.low

    @property
    def _most(self) -> float:
        return _LARGEST if self.high is None else self.high

    @property
    def _bounds(self) -> str:
        return f"{self._least:.10g} to {self._most:.10g}"

    def allows(self, value: Any) -> bool:
        """Whether a value has the right type and lies in the range."""
        if value is None:
            return types.NoneType in self.types
        if isinstance(value, bool):
            return bool in self.types
        if isinstance(value, str):
            return str in self.types and (value in self.choices if self.choices else value != "")
        if isinstance(value, list):
            return list in self.types and all(self._allows_item(item) for item in value)
        if isinstance(value, dict):
            return dict in self.types
        numbers = (int, float) if float in self.types else (int,)
        return bool({*numbers} & {*self.types}) and type(value) in numbers and self._fits(value)

    def _allows_item(self, item: Any) -> bool:
        if self.items is str:
            return isinstance(item, str) and item != ""
        return type(item) is int and self._fits(item)

    def _fits(self, value: float) -> bool:
        return self._least <= value <= self._most  # false for NaN


def key(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    aka: tuple[str, ...] = (),
) -> Any:
    """Defines a configuration key, as a field of a ``Config`` dataclass.

    To change only the default, a subclass assigns it, ``init_random_frames: int = 10_000``, or uses
    :func:`other_default` for a list or a dictionary.

    Args:
        default: the default value; ``MISSING`` if a group file or the user must set it.
        meaning: what the key does, in one line.
        low: the smallest number, or the smallest number of a list.
        high: the largest number, or the largest number of a list.
        choices: the allowed strings.
        aka: names under which users of other libraries look for this key.

    Example:
        >>> @dataclass
        ... class MyConfig(Config):
        ...     gamma: float = key(0.99, "discount factor", low=0, high=1)
        >>> describe(MyConfig)[0].range
        '0 to 1'
    """
    metadata = {"meaning": meaning, "low": low, "high": high, "choices": choices, "aka": aka}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(defined: Argument) -> Any:
    """Makes a configuration key of an argument of this library."""
    return key(
        defined.default,
        defined.meaning,
        low=defined.low,
        high=defined.high,
        choices=defined.choices,
    )


def target(path: str | None) -> Any:
    """Defines the key ``_target_`` of a group: the import path of the class, or ``None``."""
    return key(path, "import path of the class")


@dataclass
class PartConfig(Config):
    """Base class of groups whose choices are classes, which ``instantiate`` creates."""

    _target_: str | None = target(None)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class: all other keys."""
        values = {name: value for name, value in vars(self).items() if name not in _NO_ARGUMENTS}
        return values | values.pop("kwargs", {})


def other_default(value: list[Any] | dict[str, Any]) -> Any:
    """Changes the default of an inherited key to another list or dictionary.

    Example:
        >>> @dataclass
        ... class MyConfig(Config):
        ...     hidden: list[int] = key([256, 256], "hidden units", low=1)
        >>> @dataclass
        ... class SmallConfig(MyConfig):
        ...     hidden: list[int] = other_default([64])
        >>> describe(SmallConfig)[0].default, describe(SmallConfig)[0].meaning
        ([64], 'hidden units')
    """
    return dataclasses.field(default_factory=lambda: copy.copy(value))


def group(meaning: str) -> Any:
    """Defines a group of keys that users select as a whole: ``sampler=vmf_rank``.

    The annotation of the field is the base class of the group's dataclasses.
    """
    return dataclasses.field(default=MISSING, metadata={"meaning": meaning})


def schema(name: str, group: str = "") -> Callable[[_Class], _Class]:
    """Registers a dataclass with Hydra, which validates configurations against it.

    A configuration file refers to it in its defaults list: ``schema/<name>@_here_``.
    """

    def register(config: _Class) -> _Class:
        _SCHEMAS.setdefault(group, {})[name] = config
        _DESCRIBED.clear()
        ConfigStore.instance().store(name, config, group=f"{group}/schema" if group else "schema")
        return config

    return register


def recipe_schemas() -> dict[str, type[Config]]:
    """The registered configurations of recipes, by name."""
    return dict(_SCHEMAS.get("", {}))


def schemas_of(group: str) -> dict[str, type[Config]]:
    """The registered configurations of a group, by name; none for a group with one dataclass."""
    return dict(_SCHEMAS.get(group, {}))


def groups(config: type[Config]) -> dict[str, str]:
    """The groups of a recipe, with their meanings."""
    hints = get_type_hints(config)
    return {
        field.name: _metadata(config, field)["meaning"]
        for field in dataclasses.fields(config)  # type: ignore[arg-type]
        if _is_config(hints[field.name])
    }


def describe(config: type[Config]) -> tuple[Key, ...]:
    """All keys of a recipe, including those of its groups."""
    if config in _DESCRIBED:
        return _DESCRIBED[config]
    hints = get_type_hints(config)
    described: list[Key] = []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        hint = hints[field.name]
        if _is_config(hint):
            described += _describe_group(field.name, hint)
        else:
            described.append(
                Key(
                    field.name,
                    _types(hint),
                    _default(field),
                    **_metadata(config, field),
                    items=str if hint == list[str] else int,
                )
            )
    _DESCRIBED[config] = tuple(described)
    return _DESCRIBED[config]


def _describe_group(name: str, base: type[Config]) -> list[Key]:
    choices = _SCHEMAS.get(name, {"": base})
    found: dict[str, tuple[Key, list[str]]] = {}
    for choice, config in choices.items():
        for each in describe(config):
            found.setdefault(repr(each), (each, []))[1].append(choice)
    return [
        dataclasses.replace(
            each,
            name=f"{name}.{each.name}",
            only=() if len(having) == len(choices) else tuple(having),
        )
        for each, having in found.values()
    ]


def _is_config(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Config)


def _types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(each for part in get_args(hint) for each in _types(part))
    return (get_origin(hint) or hint,)


def _default(field: dataclasses.Field[Any]) -> Any:
    # Not compared with `dataclasses.MISSING`: a worker of a sweep has a copy of the class of a
    # recipe, with a copy of that object.
    if callable(field.default_factory):
        return field.default_factory()
    return field.default


def _metadata(config: type[Config], field: dataclasses.Field[Any]) -> dict[str, Any]:
    """The metadata of a field, from the base class that defines it if only the default is new."""
    for base in config.__mro__:
        if dataclasses.is_dataclass(base):
            for candidate in dataclasses.fields(base):
                if candidate.name == field.name and candidate.metadata:
                    return dict(candidate.metadata)
    raise TypeError(f"{config.__name__}.{field.name} has no meaning: define it with key().")
