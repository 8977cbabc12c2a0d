"""The names of runs, datasets, choices and keys."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

MINARI_PREFIX = "minari:"


def run_title(cfg: Any) -> str:
    """What a run trains: ``td3 on Hopper-v4, sampler=fresh, replay=per``."""
    return (
        f"{cfg.algorithm} on {cfg.env.name}, sampler={cfg.sampler.name}, replay={cfg.replay.name}"
    )


def group_name(cfg: Any) -> str:
    """The name of a run without its seed: algorithm, task, replay and sampler."""
    return f"{cfg.algorithm}-{cfg.env.name}-{cfg.replay.name}-{cfg.sampler.name}"


def folder_name(name: Any) -> str:
    """A value as the name of one folder, which needs no quotes in a shell.

    Example:
        >>> folder_name("my_package:Point-v0"), folder_name("cheetah/run")
        ('my_package-Point-v0', 'cheetah-run')
    """
    return re.sub(r"[^\w.+-]+", "-", str(name))


def written(value: Any) -> str:
    """A value as on the command line.

    Example:
        >>> written(None), written([True, 0.5, "a"])
        ('null', '[true,0.5,a]')
    """
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)


CONFIGS = Path(str(files("vmfer_recipes.configs")))


def choices_of(group: str) -> list[str]:
    """The choices of a group that come with this package."""
    return sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The keys in which two dictionaries differ, in alphabetical order."""
    keys = sorted(first.keys() | second.keys())
    return [key for key in keys if first.get(key) != second.get(key)]


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested configuration as one dictionary of dotted keys.

    Example:
        >>> flat({"seed": 0, "env": {"name": "Hopper-v4"}})
        {'seed': 0, 'env.name': 'Hopper-v4'}
    """
    if not isinstance(config, dict):
        return {prefix[:-1]: config}
    return {
        key: value
        for name, item in config.items()
        for key, value in flat(item, f"{prefix}{name}.").items()
    }
