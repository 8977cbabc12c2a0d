"""Checks configurations, and reports what Hydra and OmegaConf reject as user errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import YAMLError

from vmfer_recipes.config.errors import UserError, did_you_mean, first_line
from vmfer_recipes.config.keys import Config, Key, describe, groups, schemas_of
from vmfer_recipes.config.names import CONFIGS, choices_of

# The extra of this package that installs each choice of `hydra/launcher=`.
_LAUNCHERS = {"joblib": "sweep", "ray": "ray", "submitit_slurm": "slurm"}


def composed(name: str, overrides: list[str], config: type[Config]) -> DictConfig:
    """The configuration of a command line."""
    with explaining(config), initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(name, overrides)


def to_config(cfg: DictConfig) -> Any:
    """Converts a composed configuration to its dataclass and validates it."""
    with explaining(OmegaConf.get_type(cfg) or Config):
        config: Any = OmegaConf.to_object(cfg)
    validate(config)
    config.check()
    return config


def validate(config: Config, prefix: str = "") -> None:
    """Raises ``UserError`` for the first value that has a wrong type or lies outside its range."""
    keys = {key.name: key for key in describe(type(config))}
    for field, value in vars(config).items():
        name = f"{prefix}{field}"
        if field in keys:
            if not keys[field].allows(value):
                raise _wrong_value(name, keys[field], value)
        elif isinstance(value, Config):
            validate(value, f"{name}.")
        else:  # an entry of a dictionary that the choice lacks
            group, choice = prefix.rstrip("."), getattr(config, "name", "this choice")
            raise UserError(
                f"{name} has no effect on {group}={choice}: leave it out, or use it with a "
                f"custom class, as in {group}=my_package.MyClass."
            )


@contextmanager
def explaining(config: type[Config]) -> Iterator[None]:
    """A context in which errors of Hydra and OmegaConf are reported as user errors."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _explained(error, config) from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise _unreadable(error) from error


def _explained(error: Exception, config: type[Config]) -> UserError:
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        known = {each for each in error.options or () if "." not in each}  # no import paths
        return no_choice(group, choice, known)
    cause: Any = error
    if isinstance(error, HydraException):
        cause = error.__cause__ or error.__context__
    name = str(getattr(cause, "full_key", None) or "").partition("[")[0]
    keys = {key.name: key for key in describe(config)}
    if isinstance(cause, UserError):
        return cause
    if not name:
        return _unreadable(error)
    if isinstance(cause, MissingMandatoryValue):
        explained = UserError(f"{name} has no value: set it with {name}=.")
    elif isinstance(cause, InterpolationResolutionError):
        explained = UserError(
            f"{name} cannot be resolved ({first_line(cause)}): refer only to keys and variables "
            "that exist."
        )
    elif not isinstance(cause, ValidationError):
        explained = unknown_key(name, config)
    elif name in keys:
        explained = _wrong_value(name, keys[name], cause.value)
    else:
        explained = UserError(f"{name} has a wrong value ({first_line(cause)}).")
    file = re.match(r"In '(.+?)': ", str(error))
    return UserError(f"In {file[1]}.yaml: {explained}") if file else explained


def _unreadable(error: Exception) -> UserError:
    given = " ".join(sys.argv[1:])
    return UserError(
        f"{given!r} cannot be read ({first_line(error)}): write key=value, or see --help."
    )


def _wrong_value(name: str, expected: Key, value: Any) -> UserError:
    is_integral = isinstance(value, float) and value.is_integer()
    cure = f" Write {int(value)}." if is_integral and float not in expected.types else ""
    if short := re.fullmatch(r"([\d.]+)([kKM])", str(value)):
        cure = f" Write {short[1]}e{'6' if short[2] == 'M' else '3'}."
    return UserError(f"{name} must be {expected.expected}, got {value!r}.{cure}")


def unknown_key(name: str, config: type[Config], options: Iterable[str] = ()) -> UserError:
    """The error for a key that a recipe does not have with the selected choices."""
    keys = describe(config)
    every = {key.name for each in (config, *schemas_of().values()) for key in describe(each)}
    same = [key for key in keys if name.replace("-", "_") in key.aka]
    # An argument that is known by its name is an entry of a dictionary.
    names = [f"{key.name}.{name}" if dict[str, Any] in key.types else key.name for key in same]
    meant = ", ".join(names)
    if name in every and not meant:
        return UserError(f"{name} is not used by this recipe with these choices: leave it out.")
    known = [*(key.name for key in keys), *groups(config), *options]
    hint = f"Did you mean: {meant}?" if meant else did_you_mean(name, known, "See --help.")
    return UserError(f"There is no key {name}. {hint}")


def no_choice(group: str, choice: str, known: Iterable[str] = ()) -> UserError:
    """The error for a choice that a group does not have; ``known`` are choices of other sources."""
    if group == "hydra/launcher" and choice in _LAUNCHERS:
        extra = _LAUNCHERS[choice]
        return UserError(f"{group}={choice} needs another package: pip install '.[{extra}]'.")
    named = f"{group}={choice}" if group else f"configuration {choice}"
    if (group, choice) == ("sampler", "vmf_weighted"):
        return UserError("sampler=vmf_weighted was replaced: use sampler=fresh weighting=1.")
    known = {*known, *choices_of(group), *(_LAUNCHERS if group == "hydra/launcher" else ())}
    variants = ", ".join(sorted(each for each in known if each.startswith(f"{choice}_")))
    hint = f"Choose one of {variants}." if variants else did_you_mean(choice, known)
    message = f"There is no {named}. {hint}"
    if group == "env" and choice:
        message += f" Any other Gymnasium environment: env.name={choice}."
    return UserError(message)
