"""Configuration keys as dataclass fields, the single source for validation and help."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from typing_extensions import dataclass_transform

from torchrl_vmfer.arguments import Argument
from vmfer_recipes.config.names import folder_name

OmegaConf.register_new_resolver("folder", folder_name, replace=True)  # for run_dir

_LARGEST = 10**9  # larger numbers overflow somewhere in PyTorch or NumPy
_SCHEMAS: dict[str, dict[str, type[Config]]] = {}  # config classes by group; recipes are in ""
_Class = TypeVar("_Class", bound="Config")
_PATHS = (str, dict[str, Any])  # the items of ``list[Any]``, which OmegaConf cannot check
_DESCRIBED: dict[type[Config], tuple[Key, ...]] = {}
# The expected value of a key, by the first of these types that the key has.
_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    list[int]: "a list of whole numbers from {}, such as [100,200]",
    list[str]: "a list of strings, such as [a,b]",
    list[Any]: "a list of import paths, or of dictionaries such as {{_target_: a.B, steps: 1}}",
    dict[str, Any]: "a dictionary, such as {{a: 1, b: 2}}",
    float: "a number from {}",
    int: "a whole number from {}",
    str: "a non-empty string",
}


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

    The other attributes are the arguments of :func:`key`.

    Attributes:
        name: the dotted name, as on the command line.
        types: the allowed types. The user chooses the keys of a dictionary: ``env.kwargs.gain=2``.
        only: the choices of a group that define this key, if not all do.
    """

    meaning: str
    name: str = ""
    types: tuple[Any, ...] = ()
    default: Any = None
    low: float = -_LARGEST
    high: float = _LARGEST
    choices: tuple[str, ...] = ()
    aka: tuple[str, ...] = ()
    is_argument: bool = False
    only: tuple[str, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether the recipe or the choice of a group determines the key."""
        is_only = self.types == (str,) and self.choices == (self.default,)
        return is_only or self.name == "algorithm" or self.name.endswith("_target_")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return any(get_origin(each) is list for each in self.types)

    @property
    def range(self) -> str:
        """The allowed values in the short form of a table; empty if all values are allowed."""
        parts = [*self.choices]
        if (self.low, self.high) != (-_LARGEST, _LARGEST):
            bounds = f"≥ {self.low:.10g}" if self.high == _LARGEST else self._bounds
            parts.append(f"each {bounds}" if self.is_list else bounds)
        return ", ".join(parts)

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        kinds = [kind for kind in _EXPECTED if kind in self.types]
        parts = [*self.choices]
        if kinds != [str] or not self.choices:
            parts.append(_EXPECTED[kinds[0]].format(self._bounds))
        if types.NoneType in self.types:
            parts.append("null")
        *first, last = parts
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def _bounds(self) -> str:
        return f"{self.low:.10g} to {self.high:.10g}"

    def allows(self, value: Any, allowed: tuple[Any, ...] = ()) -> bool:
        """Whether a value lies in the range and has the right type, or else an ``allowed`` one."""
        allowed, kind = allowed or self.types, type(value)
        if kind is list:
            items = [get_args(each) for each in allowed if get_origin(each) is list]
            items = [_PATHS if item == (Any,) else item for item in items]
            return bool(items) and all(self.allows(item, items[0]) for item in value)
        if kind is dict:
            return dict[str, Any] in allowed
        if isinstance(value, str):
            return str in allowed and (value in self.choices if self.choices else value != "")
        if kind in (int, float):
            is_right = float in allowed or kind in allowed
            return is_right and self.low <= value <= self.high  # false for NaN
        return kind in allowed


def key(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    aka: tuple[str, ...] = (),
    is_argument: bool = False,
) -> Any:
    """Defines a configuration key, as a field of a ``Config`` dataclass.

    To change only the default, a subclass assigns it, ``init_random_frames: int = 10_000``, or
    ``hidden: list[int] = dataclasses.field(default_factory=lambda: [64])``.

    Args:
        default: the default value; ``MISSING`` if a group file or the user must set it.
        meaning: what the key does, in one line.
        low: the smallest number, or the smallest number of a list.
        high: the largest number, or the largest number of a list.
        choices: the allowed strings. Values of other types in the annotation are allowed as well.
        aka: names of this key in other libraries, for suggestions.
        is_argument: whether it is an argument of the class in its group's ``_target_``.

    Example:
        >>> @dataclass
        ... class MyConfig(Config):
        ...     gamma: float = key(0.99, "discount factor", low=0, high=1)
        >>> describe(MyConfig)[0].range
        '0 to 1'
    """
    low, high = -_LARGEST if low is None else low, _LARGEST if high is None else high
    defined = Key(meaning, low=low, high=high, choices=choices, aka=aka, is_argument=is_argument)
    if isinstance(default, (list, dict)):
        return dataclasses.field(
            default_factory=lambda: copy.copy(default), metadata={"key": defined}
        )
    return dataclasses.field(default=default, metadata={"key": defined})


def argument(defined: Argument, **changes: Any) -> Any:
    """Makes a configuration key of an argument of this library, with the given changes."""
    values = {name: value for name, value in vars(defined).items() if name != "is_integer"}
    return key(**{**values, "is_argument": True, **changes})


@dataclass
class PartConfig(Config):
    """Base class of groups whose choices are classes, which ``instantiate`` creates."""

    _target_: str | None = key(None, "import path of the class")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class."""
        names = [each.name for each in describe(type(self)) if each.is_argument]
        return {name: getattr(self, name) for name in names} | getattr(self, "kwargs", {})


def group(meaning: str) -> Any:
    """Defines a group of keys that users select as a whole: ``sampler=vmf_rank``.

    The annotation of the field is the base class of the group's dataclasses.
    """
    return dataclasses.field(default=MISSING, metadata={"key": Key(meaning)})


@dataclass_transform()
def schema(name: str, group: str = "") -> Callable[[type[_Class]], type[_Class]]:
    """Turns a class into a dataclass with which Hydra validates configurations, and registers it.

    A configuration file refers to it in its defaults list: ``schema/<name>@_here_``.
    """

    def register(config: type[_Class]) -> type[_Class]:
        made = dataclass(config)
        _SCHEMAS.setdefault(group, {})[name] = made
        _DESCRIBED.clear()
        ConfigStore.instance().store(name, made, group=f"{group}/schema" if group else "schema")
        return made

    return register


def schemas_of(group: str = "") -> dict[str, type[Config]]:
    """The registered configurations of a group, or of recipes, by name."""
    return _SCHEMAS.get(group, {})


def groups(config: type[Config]) -> dict[str, str]:
    """The groups of a recipe, with their meanings."""
    return {name: key.meaning for name, key in _fields(config).items() if _is_group(key)}


def describe(config: type[Config]) -> tuple[Key, ...]:
    """All keys of a recipe, including those of its groups."""
    if config not in _DESCRIBED:
        keys = _fields(config).values()
        every = (_describe_group(key) if _is_group(key) else [key] for key in keys)
        _DESCRIBED[config] = tuple(itertools.chain(*every))
    return _DESCRIBED[config]


def _is_group(key: Key) -> bool:
    return isinstance(key.types[0], type) and issubclass(key.types[0], Config)


def _fields(config: type[Config]) -> dict[str, Key]:
    """The keys and groups of a dataclass, by name."""
    hints, defined, found = get_type_hints(config), {}, {}
    for base in reversed(config.__mro__):  # a field that only changes the default has no metadata
        for name, field in getattr(base, "__dataclass_fields__", {}).items():
            if field.metadata:
                defined[name] = field.metadata["key"]
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        name, hint, factory = field.name, hints[field.name], field.default_factory
        if name not in defined:
            raise TypeError(f"{config.__name__}.{name} has no meaning: define it with key().")
        allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        # Not compared with `dataclasses.MISSING`: a worker of a sweep has a copy of the class of a
        # recipe, with a copy of that object.
        default = factory() if callable(factory) else field.default
        values = {"name": name, "types": allowed, "default": default}
        found[name] = dataclasses.replace(defined[name], **values)
    return found


def _describe_group(group: Key) -> list[Key]:
    choices = _SCHEMAS.get(group.name, {"": group.types[0]})
    found: dict[str, tuple[Key, list[str]]] = {}
    for choice, config in choices.items():
        for each in describe(config):
            found.setdefault(repr(each), (each, []))[1].append(choice)
    return [
        dataclasses.replace(
            each,
            name=f"{group.name}.{each.name}",
            only=() if len(having) == len(choices) else tuple(having),
        )
        for each, having in found.values()
    ]
