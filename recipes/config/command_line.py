"""Parses and checks command lines before Hydra does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError

from vmfer_recipes.config._hydra import option_parser
from vmfer_recipes.config.errors import UserError, did_you_mean, first_line, near_names
from vmfer_recipes.config.help import folder_help_text
from vmfer_recipes.config.keys import (
    Config,
    Key,
    describe,
    groups,
    schemas_of,
    to_config,
    wrong_value,
)
from vmfer_recipes.config.names import choices_of, written
from vmfer_recipes.config.plugins import register_choice

_Config = TypeVar("_Config", bound=Config)
_HYDRAS = ("hydra.", "hydra/")
_NUMBER = re.compile(r"(?<![\w.])\d+(\.\d*)?([eE]\+?\d+)?(?![\w.])")
# The extra of this package that installs each choice of `hydra/launcher=`.
_LAUNCHERS = {"joblib": "sweep", "ray": "ray", "submitit_slurm": "slurm"}


@dataclass(frozen=True)
class CommandLine:
    """The arguments of a recipe.

    Attributes:
        overrides: the checked ``key=value`` and ``group=choice`` arguments. 1e6 becomes 1000000.
        options: the other arguments.
        given: the values of these options, by their names in Hydra's parser, such as ``multirun``.
    """

    overrides: list[str]
    options: list[str]
    given: dict[str, Any]


def read_command_line(arguments: list[str], config: type[Config]) -> CommandLine:
    """Checks the syntax of a command line and the names in it.

    Types and ranges of the values are checked later, in the composed configuration.
    """
    if {"--help", "-h"} & {*arguments}:
        return CommandLine([], [], {"help": True})
    parser, flags = option_parser(_reject)
    keys = [*describe(config), *(Key(group, (str,), None, "") for group in groups(config))]
    _check_form(arguments, keys, flags)
    given = {
        name: value
        for name, value in vars(parser.parse_intermixed_args(arguments)).items()
        if value
    }
    overrides = given.pop("overrides", [])
    if not Path(given.get("config_dir", ".")).is_dir():
        raise UserError(f"There is no folder --config-dir {given['config_dir']}.")
    return CommandLine(
        [_checked(each, config, "multirun" in given) for each in overrides],
        [each for each in arguments if each not in overrides],
        given,
    )


def _reject(message: str) -> NoReturn:
    raise UserError(f"{message}: write key=value, or see --help.")


def _checked(argument: str, config: type[Config], is_sweep: bool) -> str:
    """Checks one override and returns it in the form that Hydra accepts."""
    if argument.startswith("~"):
        raise UserError(f"{argument} removes a key that every run needs: leave it out.")
    for group in groups(config):
        if argument in choices_of(group):
            raise UserError(f"{argument} is a choice of {group}: write {group}={argument}.")
    try:
        override = OverridesParser.create().parse_override(argument)
        name = override.get_key_element().lstrip("+")
        if not name:
            raise ValueError("no key")
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(
            f"{argument!r} cannot be parsed: write key=value, and quote a value that has special "
            "characters, as in \"key='a b'\"."
        ) from error
    if override.is_sweep_override() and not is_sweep:
        raise UserError(f"{argument} gives several values: add -m to train one run for each.")
    if name.startswith(_HYDRAS):
        return argument
    if name == "algorithm":
        raise UserError(f"{argument} does not change the algorithm: run that recipe instead.")
    if name.endswith("._target_"):
        group = name.partition(".")[0]
        raise UserError(f"{name} follows from {group}=: write {group}=my_package.MyClass.")
    bare = argument.lstrip("+")  # every key exists, so + and ++ have no effect
    if name == "experiment":
        if not override.is_add():
            raise UserError(f"experiment= requires a plus sign: write +{bare}.")
        return argument
    if name in groups(config):
        value = bare.partition("=")[2]
        if re.search(r"[\[{]|^null$", value):
            raise _no_choice(name, value, choices_of(name))
        for choice in re.findall(r"[\w.]+", value):
            register_choice(name, choice)
        return bare
    for key in describe(config):
        if dict[str, Any] in key.types and f"{name}.".startswith(f"{key.name}."):
            return f"++{bare}"  # an entry of a dictionary may be new
        if key.name == name:
            return _with_integers(key, bare)
    raise _unknown_key(name, config)


def _with_integers(key: Key, argument: str) -> str:
    """Writes integral floats such as 1e6 as integers, before other keys refer to them."""
    if float in key.types or not {int, list[int]} & {*key.types}:
        return argument
    name, _, value = argument.partition("=")
    return f"{name}={_NUMBER.sub(_as_integer, value)}"


def _as_integer(found: re.Match[str]) -> str:
    is_integral = not found[0].isdigit() and float(found[0]).is_integer()
    return str(int(float(found[0]))) if is_integral else found[0]


def read_folder_and_options(
    usage: str, arguments: list[str], config: type[_Config]
) -> tuple[Path, _Config]:
    """Reads the command line of a program with a folder and a few options, without Hydra."""
    _answer_help(usage, arguments, config)
    keys = describe(config)
    _check_form([each for each in arguments if not Path(each).is_dir()], keys, set())
    folders = [argument for argument in arguments if "=" not in argument] or arguments[:1]
    if len(folders) != 1:
        options = " ".join(f"[{key.name}={written(key.default)}]" for key in keys)
        number = "none" if not folders else " and ".join(folders)
        raise UserError(f"One folder is needed, got {number}. Usage: {usage} {options}")
    others = [each for each in arguments if each != folders[0]]
    return Path(folders[0]), read_options(usage, others, config)


def read_options(usage: str, arguments: list[str], config: type[_Config]) -> _Config:
    """Reads the command line of a program that has only options, without Hydra.

    A key whose value is a list also accepts a single item: ``at=1000`` is ``at=[1000]``.
    """
    _answer_help(usage, arguments, config)
    keys, options = {key.name: key for key in describe(config)}, []
    _check_form(arguments, keys.values(), set())
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            _reject(f"{argument!r} cannot be parsed")
        if name not in keys:
            raise _unknown_key(name, config)
        is_item = keys[name].is_list and value[:1] not in ("", "[")
        options.append(_with_integers(keys[name], f"{name}=[{value}]" if is_item else argument))
    try:
        merged: Any = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(options))
    except ValidationError as error:
        expected = keys[str(error.full_key).partition("[")[0]]
        raise wrong_value(expected.name, expected, error.value) from error
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(
            f"{' '.join(arguments)!r} cannot be parsed ({first_line(error)}): write key=value."
        ) from error
    return to_config(merged)


def _answer_help(usage: str, arguments: list[str], config: type[Config]) -> None:
    if {"--help", "-h"} & {*arguments}:
        print(folder_help_text(usage, config))
        raise SystemExit


def _check_form(arguments: list[str], keys: Iterable[Key], flags: set[str]) -> None:
    """Raises an error that shows the right form of ``--seed 3``, ``--seed=3``, ``seed 3``, etc.

    ``flags`` are the program's options that start with dashes.
    """
    known = {key.name: key for key in keys}
    for position, argument in enumerate(arguments):
        word, equals, value = argument.partition("=")
        name = word.lstrip("-").replace("-", "_")
        if word in flags or not (word.startswith("-") or (name in known and not equals)):
            continue
        if name not in known:
            meant = near_names(name, [*known, *(flag.lstrip("-") for flag in flags)])
            hint = f" Did you mean: {', '.join(meant)}?" if meant else ""
            raise UserError(f"There is no option {argument}.{hint} Write key=value, or see --help.")
        following = [each for each in arguments[position + 1 : position + 3] if each != "="]
        if not value and following and "=" not in following[0] and following[0][:1] != "-":
            value = following[0]
        value = value or ("true" if bool in known[name].types else "<value>")
        raise UserError(f"Keys are written without dashes or spaces: write {name}={value}.")


def _unknown_key(name: str, config: type[Config]) -> UserError:
    """The error for a key that a recipe does not have with the selected choices."""
    keys = describe(config)
    everywhere = {key.name for each in (config, *schemas_of().values()) for key in describe(each)}
    if name in everywhere:
        return UserError(f"{name} is not used by this recipe with these choices: leave it out.")
    meant = [key.name for key in keys if name in key.aka]
    meant = meant or near_names(name, [key.name for key in keys] + list(groups(config)))
    hint = f"Did you mean: {', '.join(meant)}?" if meant else "See --help for all keys."
    return UserError(f"There is no key {name}. {hint}")


def _no_choice(group: str, choice: str, known: Iterable[str]) -> UserError:
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
        known = {each for each in error.options or () if "." not in each}  # no import paths
        known |= {*choices_of(group)} | ({*_LAUNCHERS} if group == "hydra/launcher" else set())
        return _no_choice(group, choice, known)
    cause = error.__cause__ or error.__context__
    if not (isinstance(cause, OmegaConfBaseException) and cause.full_key):
        return UserError(first_line(error))
    name = str(cause.full_key).partition("[")[0]
    if not isinstance(cause, ValidationError):
        explained = _unknown_key(name, config)
    elif name in (keys := {key.name: key for key in describe(config)}):
        explained = wrong_value(name, keys[name], cause.value)
    else:
        explained = UserError(f"{name} has a wrong value ({first_line(cause)}).")
    file = re.match(r"In '(.+?)': ", str(error))
    return UserError(f"In {file[1]}.yaml: {explained}") if file else explained
