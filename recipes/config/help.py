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


def help_text(usage: str, config: type[Config], recipe: str = "") -> str:
    """The usage, groups and keys of a program.

    Args:
        usage: how it is started.
        config: the dataclass of its keys.
        recipe: the configuration file of a recipe, without its ending.
    """
    chosen, keys = groups(config), [key for key in describe(config) if not key.is_fixed]
    forms = f"{' [group=choice ...]' if chosen else ''} [key=value ...]{' [-m]' if recipe else ''}"
    lines = [f"Usage: {usage}{forms}", ""]
    lines += textwrap.wrap((config.__doc__ or "").strip().splitlines()[0], _WIDTH)
    if chosen:
        lines.append("\nGroups, with defaults:")
        entries = OmegaConf.load(CONFIGS / f"{recipe}.yaml").defaults
        chains = (entry.items() for entry in entries if not isinstance(entry, str))
        defaults = dict(itertools.chain(*chains))
        for group, meaning in chosen.items():
            choices = ", ".join(choices_of(group))
            lines += _entry(f"{group}={defaults.get(group, '')}", f"{meaning}: {choices}")
        experiments = ", ".join(choices_of("experiment"))
        lines += _entry("+experiment=", f"settings of a study, with -m: {experiments}")
    for group in ("", *chosen):
        lines.append(f"\nKeys of {group}=:" if group else "\nKeys, with defaults:")
        lines += _rows(key for key in keys if key.name.rpartition(".")[0] == group)
    if recipe:
        example = next((key.name for key in keys if key.name.endswith("seed")), "key")
        lines.append("\nOptions:")
        lines += _entry("-m", f"one run for each combination of values: {example}=0,1,2")
        lines += _entry("--cfg job", "print the configuration and exit")
        lines += _entry("--hydra-help", "options of Hydra, which reads the configuration")
    return "\n".join(lines)


def _rows(keys: Iterable[Key]) -> Iterator[str]:
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
