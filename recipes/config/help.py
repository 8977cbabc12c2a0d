"""The text of ``--help``, from the dataclasses that define the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from vmfer_recipes.config.keys import MISSING, Config, Key, describe, groups
from vmfer_recipes.config.names import CONFIGS, choices_of

__all__ = ["folder_help_text", "help_text"]

_WIDTH = 100
_LEFT = 34  # width of the left column
_HARD_SPACE = "\u00a0"  # prevents a line break


def help_text(name: str, config: type[Config], program: str) -> str:
    """The usage, groups and keys of a recipe."""
    return "\n".join(_lines(name, config, program))


def folder_help_text(usage: str, config: type[Config]) -> str:
    """The usage and keys of a program that reads a folder."""
    lines = [f"Usage: {usage} [key=value ...]", ""]
    lines += [*textwrap.wrap((config.__doc__ or "").strip().splitlines()[0], _WIDTH)]
    lines += ["", "Keys, with defaults:"]
    lines += [line for key in describe(config) for line in _key(key)]
    return "\n".join(lines)


def _lines(name: str, config: type[Config], program: str) -> Iterator[str]:
    chosen = groups(config)
    choice = " [group=choice ...]" if chosen else ""
    yield f"Usage: {program}{choice} [key=value ...] [-m]"
    yield ""
    yield from textwrap.wrap((config.__doc__ or "").strip().splitlines()[0], _WIDTH)
    if chosen:
        yield "\nGroups, with defaults:"
        defaults = _default_choices(name)
        for group, meaning in chosen.items():
            default = defaults.get(group, "")
            yield from _entry(f"{group}={default}", f"{meaning}: {', '.join(choices_of(group))}")
        experiments = ", ".join(choices_of("experiment"))
        yield from _entry("+experiment=", f"settings of a study, with -m: {experiments}")
    keys = [key for key in describe(config) if not key.is_fixed]
    yield "\nKeys, with defaults:"
    for key in keys:
        if "." not in key.name:
            yield from _key(key)
    for group in chosen:
        yield f"\nKeys of {group}=:"
        for key in keys:
            if key.name.startswith(f"{group}."):
                yield from _key(key)
    yield "\nOptions:"
    example = next((key.name for key in keys if key.name.endswith("seed")), "key")
    yield from _entry("-m", f"one run for each combination of values: {example}=0,1,2")
    yield from _entry("--cfg job", "print the configuration and exit")
    yield from _entry("--hydra-help", "options of Hydra, which reads the configuration")


def _default_choices(name: str) -> dict[str, str]:
    """The choices in the defaults list of a recipe's configuration file."""
    file = CONFIGS / f"{name}.yaml"
    if not file.exists():
        return {}
    entries: Any = OmegaConf.to_container(OmegaConf.load(file))
    return {
        str(group): str(choice)
        for entry in entries.get("defaults", [])
        if isinstance(entry, dict)
        for group, choice in entry.items()
    }


def _key(key: Key) -> Iterator[str]:
    default = "" if key.default == MISSING else _written(key.default)
    notes = [key.range] if key.range else []
    notes += [f"only {', '.join(key.only)}"] if key.only else []
    note = f" [{'; '.join(notes)}]".replace(" ", _HARD_SPACE) if notes else ""
    yield from _entry(f"{key.name}={default}", f"{key.meaning} {note.strip()}")


def _entry(left: str, right: str) -> Iterator[str]:
    indent = " " * _LEFT
    wrapped = textwrap.wrap(right, _WIDTH - _LEFT, break_on_hyphens=False)
    if len(left) + 4 > _LEFT:
        yield f"  {left}"
    else:
        yield f"  {left}".ljust(_LEFT) + wrapped.pop(0).replace(_HARD_SPACE, " ")
    yield from (indent + line.replace(_HARD_SPACE, " ") for line in wrapped)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
