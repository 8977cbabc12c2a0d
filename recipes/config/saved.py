"""The configuration of a run, read back from its ``config.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import OmegaConf

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.keys import MISSING, Config, describe, groups, schemas_of
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import validate

__all__ = ["load_config", "read_config", "read_env", "written_config"]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # ten times faster
    """Reads YAML as Hydra does, where 1e-3 is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+|\d*\.\d+|\d+\.\d*)[eE][-+]?\d+$"),
    [*"-+.0123456789"],
)


def read_config(file: Path) -> dict[str, Any]:
    """The contents of a ``config.yaml``, with groups as dictionaries.

    References are not resolved: a file from elsewhere must not read this machine's environment
    variables. Nothing is imported or executed.
    """
    content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    if not isinstance(content, dict):
        raise ValueError("it holds no keys")
    return {str(key): value for key, value in content.items()}


def written_config(values: dict[str, Any]) -> str:
    """The contents of a ``config.yaml`` with these values."""
    return OmegaConf.to_yaml(values)


def read_env(saved: dict[str, Any]) -> EnvConfig:
    """The task of a saved configuration, of any recipe."""
    env = EnvConfig(**saved["env"])
    validate(env, "env.")
    return env


def load_config(run_dir: Path) -> TrainingConfig:
    """The configuration of a run of this package's recipes."""
    file = run_dir / "config.yaml"
    if not file.exists():
        raise UserError(
            f"{run_dir} has no config.yaml: give the directory of a run, such as "
            "runs/td3/HalfCheetah-v4/uniform-fresh/seed0."
        )
    try:
        saved = read_config(file)
        algorithm = saved["algorithm"]
    except Exception as error:
        raise UserError(
            f"{file} is not the configuration of a run ({first_line(error)})."
        ) from error
    if algorithm not in algorithms():
        raise UserError(
            f"{run_dir} is a run of {algorithm}, which is not a recipe of this package: give a run "
            f"of {', '.join(algorithms())}."
        )
    try:
        config = _restored(algorithms()[algorithm], saved, "")
        validate(config)
    except (UserError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{file} does not fit this version of {algorithm} ({first_line(error)})."
        ) from error
    return config


def _restored(config: type[Config], saved: dict[str, Any], prefix: str) -> Any:
    """A configuration as a dataclass, with the dataclasses of the choices of its groups."""
    hints, values = get_type_hints(config), dict(saved)
    for name in sorted(hints.keys() ^ values.keys()):
        what = "has no value" if name in hints else "is not one of its keys"
        raise UserError(f"{prefix}{name} {what}")
    for name in groups(config):
        chosen = _class_of(name, hints[name], values[name])
        values[name] = _restored(chosen, values[name], f"{name}.")
    return config(**values)


def _class_of(group: str, base: type[Config], saved: dict[str, Any]) -> type[Config]:
    """The dataclass whose keys and fixed values a saved group has. Nothing is imported."""
    for choice in schemas_of(group).values():
        keys = describe(choice)
        fixed = {key.name: key.default for key in keys if key.is_fixed and key.default != MISSING}
        if saved.keys() == {key.name for key in keys} and fixed.items() <= saved.items():
            return choice
    if schemas_of(group):
        raise UserError(f"there is no {group}= with the keys {', '.join(map(str, saved))}")
    return base
