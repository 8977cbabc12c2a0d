"""The errors for mistakes in a command line: what is wrong, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException, ValidationError

from vmfer_recipes.config.choices import choices_of
from vmfer_recipes.config.errors import UserError, did_you_mean, first_line, near_names
from vmfer_recipes.config.keys import Config, Key, describe, groups, recipe_schemas
from vmfer_recipes.config.validation import wrong_value

__all__ = ["check_form", "explain", "no_choice", "unknown_key"]

# The extra of this package that installs each choice of `hydra/launcher=`.
_LAUNCHERS = {"joblib": "sweep", "ray": "ray", "submitit_slurm": "slurm"}


def check_form(arguments: list[str], keys: Iterable[Key], flags: set[str]) -> None:
    """Raises an error with the right form for ``--seed 3``, ``--seed=3``, ``seed 3`` and the like.

    Args:
        arguments: the command line.
        keys: the keys of the program.
        flags: the names of options with dashes that the program has.
    """
    known = {key.name: key for key in keys}
    for position, argument in enumerate(arguments):
        word, equals, value = argument.partition("=")
        dashes = len(word) - len(word.lstrip("-"))
        name = word.lstrip("-").replace("-", "_")
        if word in flags or not (dashes or (name in known and not equals)):
            continue
        following = [each for each in arguments[position + 1 : position + 3] if each != "="]
        if not value and following and "=" not in following[0] and following[0][:1] != "-":
            value = following[0]
        if name not in known:
            meant = near_names(name, [*known, *(flag.lstrip("-") for flag in flags)])
            hint = f" Did you mean: {', '.join(meant)}?" if meant else ""
            raise UserError(f"There is no option {argument}.{hint} Write key=value, or see --help.")
        if not value:
            value = "true" if bool in known[name].types else "<value>"
        form = f"{name}={value}"
        raise UserError(f"Keys are written without dashes and spaces: write {form}.")


def unknown_key(name: str, config: type[Config]) -> UserError:
    """The error for a key that a recipe does not have with the selected choices."""
    keys = describe(config)
    elsewhere = {key.name for other in recipe_schemas().values() for key in describe(other)}
    if name in {key.name for key in keys} | elsewhere:
        return UserError(f"{name} is not used by this recipe with these choices: leave it out.")
    meant = [key.name for key in keys if name in key.aka]
    meant = meant or near_names(name, [key.name for key in keys] + list(groups(config)))
    hint = f"Did you mean: {', '.join(meant)}?" if meant else "See --help for all keys."
    return UserError(f"There is no key {name}. {hint}")


def no_choice(group: str, choice: str, known: Iterable[str]) -> UserError:
    """The error for a choice that a group does not have."""
    if group == "hydra/launcher" and choice in _LAUNCHERS:
        extra = _LAUNCHERS[choice]
        return UserError(f"{group}={choice} needs another package: pip install '.[{extra}]'.")
    named = f"{group}={choice}" if group else f"configuration {choice}"
    message = f"There is no {named}. {did_you_mean(choice, known)}"
    if group == "env" and choice:
        message += f" Any other Gymnasium environment: env.name={choice}."
    return UserError(message)


def explain(error: HydraException, config: type[Config]) -> UserError:
    """The error for a configuration that Hydra could not compose."""
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = {each for each in error.options or () if "." not in each}  # no import paths
        known = options | {*choices_of(group)}
        if group == "hydra/launcher":
            known |= {*_LAUNCHERS}
        return no_choice(group, choice, known)
    cause = error.__cause__ or error.__context__
    if not (isinstance(cause, OmegaConfBaseException) and cause.full_key):
        return UserError(first_line(error))
    name = str(cause.full_key).partition("[")[0]
    if not isinstance(cause, ValidationError):
        explained = unknown_key(name, config)
    elif name in (keys := {key.name: key for key in describe(config)}):
        explained = wrong_value(name, keys[name], cause.value)
    else:
        explained = UserError(f"{name} has a wrong value ({first_line(cause)}).")
    file = re.match(r"In '(.+?)': ", str(error))
    return UserError(f"In {file[1]}.yaml: {explained}") if file else explained
