"""The configuration of a run, read back from its ``config.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.keys import MISSING, Config, describe, groups, schemas_of, validate
from vmfer_recipes.config.names import flat
from vmfer_recipes.config.training import TrainingConfig

# The keys of a run that every program needs, and their types.
_REQUIRED: dict[str, type] = {
    **dict.fromkeys(("algorithm", "env.name", "replay.name", "sampler.name"), str),
    **dict.fromkeys(("seed", "total_frames"), int),
}


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
    for name, kind in _REQUIRED.items():
        if type(values.get(name)) is not kind:
            raise ValueError(f"config.yaml has {name}={values.get(name)!r}")
    if config["total_frames"] < 1:
        raise ValueError(f"config.yaml has total_frames={config['total_frames']}")
    return config


def read_run(run_dir: Path) -> tuple[dict[str, Any], EnvConfig]:
    """The configuration of a training run that the user named, and its task."""
    file = run_dir / "config.yaml"
    if not file.exists():
        raise UserError(
            f"{run_dir} has no config.yaml: give the directory of a run, such as "
            "runs/td3/HalfCheetah-v4/uniform-fresh/seed0."
        )
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
    """The configuration of a run of this package's recipes."""
    saved, _ = read_run(run_dir)
    algorithm = saved["algorithm"]
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
            f"{run_dir / 'config.yaml'} does not fit this version of {algorithm} "
            f"({first_line(error)})."
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
