"""Parses and checks command lines before Hydra does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, Transformer
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError

from vmfer_recipes.config.errors import UserError, did_you_mean, first_line, near_names
from vmfer_recipes.config.help import folder_help_text
from vmfer_recipes.config.keys import Config, Key, describe, groups, recipe_schemas
from vmfer_recipes.config.names import choices_of
from vmfer_recipes.config.plugins import register_choice
from vmfer_recipes.config.validation import to_config, wrong_value

__all__ = [
    *("CommandLine", "check_form", "explain", "no_choice", "read_command_line"),
    *("read_folder_and_options", "read_options", "unknown_key"),
]

_Config = TypeVar("_Config", bound=Config)
_HYDRAS = ("hydra.", "hydra/")


@dataclass(frozen=True)
class CommandLine:
    """The arguments of a recipe.

    Attributes:
        overrides: the checked ``key=value`` and ``group=choice`` arguments; 1e6 is written 1000000.
        options: the other arguments, for Hydra.
        is_sweep: whether ``-m`` was given, for several runs.
        is_help: whether ``--help`` was given.
        is_question: whether the program prints information, such as ``--help``, and ends.
        has_own_config: whether the configuration does not come from this package.
        config_dir: a directory with further configuration files, or ``None``.
    """

    overrides: list[str]
    options: list[str]
    is_sweep: bool = False
    is_help: bool = False
    is_question: bool = False
    has_own_config: bool = False
    config_dir: str | None = None

    @property
    def arguments(self) -> list[str]:
        """All arguments, in the order that Hydra's parser accepts."""
        return [*self.overrides, *self.options]

    @property
    def needs_hydra(self) -> bool:
        """Whether Hydra's own program is needed: for a sweep, a question, or a key of Hydra."""
        is_hydras = any(each.lstrip("+").startswith(_HYDRAS) for each in self.overrides)
        return self.is_sweep or self.is_question or self.has_own_config or is_hydras


def read_command_line(arguments: list[str], config: type[Config]) -> CommandLine:
    """Checks the syntax of a command line and the names in it.

    Types and ranges of the values are checked later, in the composed configuration.
    """
    if {"--help", "-h"} & {*arguments}:
        return CommandLine([], [], is_help=True, is_question=True)
    keys = [*describe(config), *(Key(group, (str,), None, "") for group in groups(config))]
    parser = _Parser()
    check_form(arguments, keys, parser.flags)
    options = parser.parse_intermixed_args(arguments)
    if options.config_dir is not None and not Path(options.config_dir).is_dir():
        raise UserError(f"There is no folder --config-dir {options.config_dir}.")
    given = set(options.overrides)
    return CommandLine(
        overrides=[_checked(each, config, options.multirun) for each in options.overrides],
        options=[argument for argument in arguments if argument not in given],
        is_sweep=options.multirun,
        is_question=any(
            (
                options.hydra_help,
                options.version,
                options.cfg,
                options.shell_completion,
                {"--info", "-i"} & {*arguments},
            )
        ),
        has_own_config=bool(options.config_path or options.config_name),
        config_dir=options.config_dir,
    )


class _Parser(argparse.ArgumentParser):
    """A parser of Hydra's documented options, so that their values are not taken for overrides."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("overrides", nargs="*")
        self.add_argument("--multirun", "-m", action="store_true")
        for flag in ("--run", "--resolve", "--hydra-help", "--version"):
            self.add_argument(flag, action="store_true")
        self.add_argument("--info", "-i", nargs="?")
        self.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
        for option, short in {
            "--package": "-p",
            "--config-path": "-cp",
            "--config-name": "-cn",
            "--config-dir": "-cd",
            "--shell-completion": "-sc",
        }.items():
            self.add_argument(option, short)

    @property
    def flags(self) -> set[str]:
        """The names of the options."""
        return {name for action in self._actions for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
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
    if name == "experiment":
        _check_experiment(override, argument)
        return argument
    # Every key exists, so + and ++ have no effect.
    if name in groups(config):
        _check_choice(name, override, argument)
        return argument.lstrip("+")
    keys = [*describe(config)]
    if any(dict in key.types and f"{name}.".startswith(f"{key.name}.") for key in keys):
        return f"++{argument.lstrip('+')}"  # entries of a dictionary, which may be new
    # Several choices of a group can have a key of the same name.
    keys = [key for key in keys if key.name == name]
    if not keys:
        raise unknown_key(name, config)
    _check_numbers(keys, override)
    return _with_integers(keys[0], override, argument).lstrip("+")


def _check_experiment(override: Override, argument: str) -> None:
    if not override.is_add():
        raise UserError(f"An experiment is added with a plus sign: write +{argument.lstrip('+')}.")
    if not all(isinstance(value, (str, list)) for value in _values(override)):
        raise no_choice("experiment", argument.partition("=")[2], choices_of("experiment"))


def _check_choice(group: str, override: Override, argument: str) -> None:
    if not all(isinstance(value, (str, QuotedString)) and value for value in _values(override)):
        raise no_choice(group, argument.partition("=")[2], choices_of(group))
    for value in _values(override):
        register_choice(group, value.text if isinstance(value, QuotedString) else value)


def _values(override: Override) -> list[Any]:
    if override.is_sweep_override():
        if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
            return []  # Hydra knows the choices that a pattern matches
        return list(override.sweep_iterator(transformer=Transformer.identity))
    return [override.value()]


def _check_numbers(keys: list[Key], override: Override) -> None:
    """Checks each number of a sweep. (Single values are checked in the composed configuration.)"""
    key = keys[0]
    if override.is_sweep_override() and {int, float} & {*key.types}:
        for value in map(_as_integers, _values(override)):
            is_number = type(value) in (int, float) or (
                isinstance(value, str) and str not in key.types and "${" not in value
            )
            if is_number and not any(each.allows(value) for each in keys):
                raise wrong_value(key.name, key, value)


def _with_integers(key: Key, override: Override, argument: str) -> str:
    """Writes integral floats such as 1e6 as integers, before other keys refer to them."""
    if not {int, list} & {*key.types} or float in key.types:
        return argument
    values = _values(override)
    whole = [_as_integers(value) for value in values]
    if repr(whole) == repr(values):
        return argument
    return f"{override.get_key_element()}={','.join(map(_written, whole))}"


def _as_integers(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, QuotedString):
        return value.with_quotes()
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def read_folder_and_options(
    usage: str, arguments: list[str], config: type[_Config]
) -> tuple[Path, _Config]:
    """Reads the command line of a program with a folder and a few options, without Hydra."""
    keys = describe(config)
    _answer_help(usage, arguments, config)
    check_form([each for each in arguments if not Path(each).is_dir()], keys, set())
    folders = [argument for argument in arguments if "=" not in argument] or arguments[:1]
    if len(folders) != 1:
        options = " ".join(f"[{key.name}={_written(key.default)}]" for key in keys)
        number = "none" if not folders else " and ".join(folders)
        raise UserError(f"One folder is needed, got {number}. Usage: {usage} {options}")
    return Path(folders[0]), _options([each for each in arguments if each != folders[0]], config)


def read_options(usage: str, arguments: list[str], config: type[_Config]) -> _Config:
    """Reads the command line of a program that has only options, without Hydra.

    A key whose value is a list also accepts a single item: ``at=1000`` is ``at=[1000]``.
    """
    _answer_help(usage, arguments, config)
    check_form(arguments, describe(config), set())
    for argument in arguments:
        if "=" not in argument:
            raise UserError(f"{argument!r} cannot be parsed: write key=value, or see --help.")
    return _options(arguments, config)


def _answer_help(usage: str, arguments: list[str], config: type[Config]) -> None:
    if {"--help", "-h"} & {*arguments}:
        print(folder_help_text(usage, config))
        raise SystemExit


def _options(given: list[str], config: type[_Config]) -> _Config:
    """The options of a command line, checked."""
    keys = {key.name: key for key in describe(config)}
    written = []
    for argument in given:
        name, _, value = argument.partition("=")
        if name not in keys:
            raise unknown_key(name, config)
        is_item = list in keys[name].types and value[:1] not in ("", "[")
        written.append(f"{name}=[{value}]" if is_item else argument)
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(written))
        whole = {
            name: _as_integers(value) if {int, list} & {*keys[name].types} else value
            for name, value in values.items()
        }
        merged: Any = OmegaConf.merge(OmegaConf.structured(config), whole)
    except ValidationError as error:
        expected = keys[str(error.full_key).partition("[")[0]]
        raise wrong_value(expected.name, expected, error.value) from error
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(
            f"{' '.join(given)!r} cannot be parsed ({first_line(error)}): write key=value."
        ) from error
    return to_config(merged)


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
