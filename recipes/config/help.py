"""The text of ``--help``, from the dataclasses that define the keys."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator

from omegaconf import OmegaConf

from vmfer_recipes.config.keys import MISSING, Config, Key, describe, groups
from vmfer_recipes.config.names import CONFIGS, choices_of, written

_WIDTH = 100
_LEFT = 34  # width of the left column
_HARD_SPACE = "\u00a0"  # prevents a line break


def folder_help_text(usage: str, config: type[Config]) -> str:
    """The usage and keys of a program that reads a folder."""
    return "\n".join([*_head(f"{usage} [key=value ...]", config), *_keys("", describe(config))])


def help_text(name: str, config: type[Config], program: str) -> str:
    """The usage, groups and keys of a recipe."""
    chosen = groups(config)
    choice = " [group=choice ...]" if chosen else ""
    lines = [*_head(f"{program}{choice} [key=value ...] [-m]", config)]
    if chosen:
        lines.append("\nGroups, with defaults:")
        defaults = _default_choices(name)
        for group, meaning in chosen.items():
            choices = ", ".join(choices_of(group))
            lines += _entry(f"{group}={defaults.get(group, '')}", f"{meaning}: {choices}")
        experiments = ", ".join(choices_of("experiment"))
        lines += _entry("+experiment=", f"settings of a study, with -m: {experiments}")
    keys = [key for key in describe(config) if not key.is_fixed]
    for group in ("", *chosen):
        lines += _keys(group, [key for key in keys if key.name.rpartition(".")[0] == group])
    lines.append("\nOptions:")
    example = next((key.name for key in keys if key.name.endswith("seed")), "key")
    lines += _entry("-m", f"one run for each combination of values: {example}=0,1,2")
    lines += _entry("--cfg job", "print the configuration and exit")
    lines += _entry("--hydra-help", "options of Hydra, which reads the configuration")
    return "\n".join(lines)


def _head(usage: str, config: type[Config]) -> list[str]:
    described = (config.__doc__ or "").strip().splitlines()[0]
    return [f"Usage: {usage}", "", *textwrap.wrap(described, _WIDTH)]


def _default_choices(name: str) -> dict[str, str]:
    """The choices in the defaults list of a recipe's configuration file."""
    entries = OmegaConf.load(CONFIGS / f"{name}.yaml").defaults
    chosen = [entry.items() for entry in entries if not isinstance(entry, str)]
    return dict(itertools.chain(*chosen))


def _keys(group: str, keys: Iterable[Key]) -> Iterator[str]:
    yield f"\nKeys of {group}=:" if group else "\nKeys, with defaults:"
    for key in keys:
        default = "" if key.default == MISSING else written(key.default)
        notes = [key.range] if key.range else []
        notes += [f"only {', '.join(key.only)}"] if key.only else []
        note = f" [{'; '.join(notes)}]".replace(" ", _HARD_SPACE) if notes else ""
        yield from _entry(f"{key.name}={default}", f"{key.meaning} {note.strip()}")


def _entry(left: str, right: str) -> Iterator[str]:
    wrapped = textwrap.wrap(right, _WIDTH - _LEFT, break_on_hyphens=False)
    shown = f"  {left}".ljust(_LEFT)
    if len(left) + 4 > _LEFT:
        yield shown.rstrip()
    else:
        yield shown + wrapped.pop(0).replace(_HARD_SPACE, " ")
    yield from (" " * _LEFT + line.replace(_HARD_SPACE, " ") for line in wrapped)
