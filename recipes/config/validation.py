"""Validation of configurations, against the definitions of their keys."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import Config, Key, describe
from vmfer_recipes.config.names import flat


def validate(config: Config, prefix: str = "") -> None:
    """Raises ``UserError`` for the first value that has a wrong type or lies outside its range."""
    described = {each.name: each for each in describe(type(config))}
    known = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    for name in vars(config).keys() - known:  # entries of a dictionary that the choice lacks
        group = prefix.rstrip(".")
        choice = getattr(config, "name", "this choice")
        raise UserError(
            f"{prefix}{name} has no effect on {group}={choice}: leave it out, or use it with a "
            f"class of your own, as in {group}=my_package.MyClass."
        )
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if field.name in described:
            if not described[field.name].allows(value):
                raise wrong_value(name, described[field.name], value)
        elif isinstance(value, Config):
            validate(value, f"{name}.")
        else:
            raise UserError(f"{name} must be a group, got {value!r}: choose one with {name}=.")


def wrong_value(name: str, expected: Key, value: Any) -> UserError:
    """The error for a value that a key does not allow."""
    is_integral = isinstance(value, float) and value.is_integer()
    cure = f" Write {int(value)}." if is_integral and float not in expected.types else ""
    return UserError(f"{name} must be {expected.expected}, got {value!r}.{cure}")


def to_config(cfg: DictConfig) -> Any:
    """Converts a composed Hydra configuration to its dataclass and validates it."""
    try:
        config: Any = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        name = error.full_key or ""
        raise UserError(f"{name} has no value: set it with {name}=.") from error
    except OmegaConfBaseException as error:
        name = str(error.full_key).partition("[")[0]
        written = flat(OmegaConf.to_container(cfg, resolve=False)).get(name)
        raise UserError(
            f"{name}={written} cannot be resolved ({first_line(error)}): refer only to keys and "
            "variables that exist."
        ) from error
    validate(config)
    config.check()
    return config
