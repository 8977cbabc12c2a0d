"""The configuration of a run, read back from its ``config.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.keys import MISSING, Config, describe, groups, schemas_of
from vmfer_recipes.config.names import differing, flat
from vmfer_recipes.config.plugins import import_module
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import validate

# The keys of a run that every program needs.
_REQUIRED = ("algorithm", "seed", "total_frames", "env.name", "replay.name", "sampler.name")
_EXAMPLE = "runs/td3/HalfCheetah-v4/uniform-fresh/seed0"
_SHOWN = 20  # runs of a folder that an error lists
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times faster


def read_config(file: Path) -> dict[str, Any]:
    """The contents of a ``config.yaml``, with groups as dictionaries.

    References are not resolved: a file from elsewhere must not read this machine's environment
    variables. Nothing is imported or executed.
    """
    content = yaml.load(file.read_text(encoding="utf-8"), _LOADER)
    if not isinstance(content, dict):
        raise ValueError("it holds no keys")
    return {str(key): value for key, value in content.items()}


class NoTrainingRunError(ValueError):
    """Raised for the configuration of another program, such as ``shooting.py``."""


def read_training_config(run_dir: Path) -> dict[str, Any]:
    """The contents of the ``config.yaml`` of a training run, of any recipe."""
    try:
        config = read_config(run_dir / "config.yaml")
    except Exception as error:
        raise ValueError(f"config.yaml cannot be read ({first_line(error)})") from error
    if not {"algorithm", "total_frames"} & config.keys():
        raise NoTrainingRunError("config.yaml does not belong to a training run")
    values = flat(config)
    for key in describe(TrainingConfig):
        if key.name in _REQUIRED and not key.allows(values.get(key.name)):
            raise ValueError(f"config.yaml has {key.name}={values.get(key.name)!r}")
    return config


def read_run(run_dir: Path) -> tuple[dict[str, Any], EnvConfig]:
    """The configuration of a training run that the user named, and its task."""
    file = run_dir / "config.yaml"
    if not file.exists():
        runs = sorted(each.parent.as_posix() for each in run_dir.rglob("config.yaml"))
        more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        cure = f"one of {', '.join(runs[:_SHOWN])}{more}" if runs else f"a run, such as {_EXAMPLE}"
        raise UserError(f"{run_dir} is not a run, because it has no config.yaml: give {cure}.")
    try:
        saved = read_training_config(run_dir)
        env = EnvConfig(**saved["env"])
        validate(env, "env.")
    except Exception as error:
        raise UserError(
            f"{file} is not the configuration of a run ({first_line(error)})."
        ) from error
    return saved, env


def load_config(run_dir: Path) -> TrainingConfig:
    """The configuration of a run of a built-in or custom algorithm."""
    saved, _ = read_run(run_dir)
    algorithm = saved["algorithm"]
    kind: Any = algorithms().get(algorithm)
    if kind is None:
        setting = (
            f"{run_dir} is a run of {algorithm}, which is not a recipe of this package. Start this "
            f"command in the folder of {algorithm}.py"
        )
        recipe = getattr(import_module(algorithm, setting), "main", None)
        kind = getattr(recipe, "config", None)
        if kind is None:
            raise UserError(f"{setting}: the module found there has no recipe.")
    try:
        parts = {group: _part(group, saved[group]) for group in groups(kind)}
        config = kind(**saved | parts)
        if keys := differing(flat(config.as_dict()), flat(saved)):
            raise UserError(f"{keys[0]} has no value")
        validate(config)
    except (UserError, TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"{run_dir / 'config.yaml'} does not fit this version of {algorithm} "
            f"({first_line(error)})."
        ) from error
    return config


def _part(group: str, saved: dict[str, Any]) -> Config:
    """A group as the dataclass whose keys and fixed values it has. Nothing is imported."""
    for choice in (schemas_of(group) or {"": EnvConfig}).values():
        keys = describe(choice)
        fixed = {key.name: key.default for key in keys if key.is_fixed and key.default != MISSING}
        if saved.keys() == {key.name for key in keys} and fixed.items() <= saved.items():
            return choice(**saved)
    raise UserError(f"there is no {group}= with the keys {', '.join(map(str, saved))}")
