"""The configuration of a run, read back from its ``config.yaml``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import MISSING, Config, describe, schemas_of
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import validate
from vmfer_recipes.run.files import read_config

__all__ = ["load_config"]


def load_config(run_dir: Path) -> TrainingConfig:
    """The configuration of a run of this package's recipes.

    Keys that the run does not have, because an earlier version wrote it, have their defaults.

    Args:
        run_dir: the directory of the run.

    Raises:
        UserError: if there is no such file, or it is not the configuration of a known recipe.
    """
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
        config = _restored(algorithms()[algorithm], saved)
        validate(config)
    except KeyError as error:
        raise UserError(
            f"{file} does not fit this version of {algorithm} (the key {error} is missing)."
        ) from error
    except (UserError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{file} does not fit this version of {algorithm} ({first_line(error)})."
        ) from error
    return config


def _restored(kind: type[Config], saved: dict[str, Any]) -> Any:
    """A configuration as a dataclass, with the dataclasses that the kinds of its groups select."""
    hints = get_type_hints(kind)
    values = dict(saved)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Config):
            values[field.name] = _restored(_class_of(field.name, hint, saved), saved[field.name])
    unknown = values.keys() - hints.keys()
    if unknown:
        raise UserError(f"there is no key {min(unknown)}")
    missing = [key.name for key in describe(kind) if key.default == MISSING]
    missing = [name for name in missing if "." not in name and name not in values]
    if missing:
        raise UserError(f"{missing[0]} has no value")
    return kind(**values)


def _class_of(group: str, base: type[Config], saved: dict[str, Any]) -> type[Config]:
    """The dataclass of a saved group, as selected by its kind."""
    schemas = schemas_of(group)
    if not schemas:
        return base
    kind = saved[group]["kind"]
    for schema in schemas.values():
        if any(key.name == "kind" and kind in key.choices for key in describe(schema)):
            return schema
    raise UserError(f"there is no {group}.kind={kind}")
