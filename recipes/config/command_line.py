"""Reads command lines, those of recipes before Hydra does, and answers ``--help``."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from vmfer_recipes.config._hydra import option_parser
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import MISSING, Config, Key, describe, groups
from vmfer_recipes.config.names import CONFIGS, choices_of, written
from vmfer_recipes.config.plugins import register_choice
from vmfer_recipes.config.validation import explaining, no_choice, to_config, unknown_key

_Config = TypeVar("_Config", bound=Config)
_FLOAT = re.compile(r"(?<![\w.])(\d+\.\d*|\d+\.?\d*[eE]\+?\d+)(?![\w.])")
# The layout of the help.
_WIDTH = 100
_LEFT = 34  # width of the left column
_HARD_SPACE = "\u00a0"  # prevents a line break


def read_command_line(
    arguments: list[str], config: type[Config]
) -> tuple[list[str], dict[str, Any]]:
    """Checks the syntax of a recipe's command line and the names in it, before it is composed.

    Returns the arguments for the configuration, with 1000000 instead of 1e6, and the options of
    Hydra by their names in its parser, such as ``multirun``.
    """
    parser, flags = option_parser(_reject)
    _check_form(arguments, config, flags)
    parsed = vars(parser.parse_intermixed_args(arguments))
    options = {name: value for name, value in parsed.items() if value}
    given = options.pop("overrides", [])
    overrides = [_checked(each, config, "multirun" in options) for each in given]
    if folder := options.pop("config_dir", None):
        if not Path(folder).is_dir():
            raise UserError(f"There is no folder --config-dir {folder}.")
        overrides.append(f"hydra.searchpath=['file://{Path(folder).absolute()}']")
    return overrides, options


def _reject(message: str) -> NoReturn:
    raise UserError(f"{message}: write key=value, or see --help.")


def _checked(argument: str, config: type[Config], is_sweep: bool) -> str:
    """Checks one override and returns it in the form that Hydra accepts."""
    chosen, keys = groups(config), {key.name: key for key in describe(config)}
    for group in chosen:
        if argument in choices_of(group):
            raise UserError(f"{argument} is a choice of {group}: write {group}={argument}.")
    try:
        override = OverridesParser.create().parse_override(argument)
        name = override.get_key_element().lstrip("+~")
        if not name:
            raise ValueError("no key")
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(
            f"{argument!r} cannot be parsed: write key=value, and quote a value that has special "
            "characters, as in \"key='a b'\"."
        ) from error
    if override.is_delete():
        raise UserError(f"{argument} removes a key that every run needs: leave it out.")
    if override.is_sweep_override() and not is_sweep:
        value = argument.partition("=")[2]
        one = f"write {name}=[{value}] or " if name in keys and keys[name].is_list else ""
        raise UserError(f"{argument} gives several values: {one}add -m to train one run for each.")
    if override.is_hydra_override():
        if argument == "hydra/launcher=population" and not is_sweep:
            raise UserError(f"{argument} trains the runs of a sweep: add -m.")
        return argument
    bare = argument.lstrip("+")  # every key exists, so + and ++ have no effect
    value = bare.partition("=")[2]
    if name == "experiment":
        if not override.is_add():
            raise UserError(f"experiment= requires a plus sign: write +{bare}.")
        return argument
    if name in chosen:
        if re.search(r"[\[{]|^null$", value):
            raise no_choice(name, value)
        for choice in re.findall(r"[\w.]+", value):
            register_choice(name, choice)
        return bare
    dictionaries = (key.name for key in keys.values() if dict[str, Any] in key.types)
    if any(f"{name}.".startswith(f"{each}.") for each in dictionaries):
        return f"++{bare}"  # the user adds entries
    if name not in keys:
        raise unknown_key(name, config)
    if keys[name].is_fixed:
        group = name.rpartition(".")[0]
        cure = f"write {group}={value}" if group else "run that recipe"
        raise UserError(f"{bare} follows from other choices: {cure} instead.")
    return _with_integers(keys[name], bare)


def _with_integers(key: Key, argument: str) -> str:
    """Writes integral floats such as 1e6 as integers, before other keys refer to them."""
    if float in key.types or not {int, list[int]} & {*key.types}:
        return argument
    name, _, value = argument.partition("=")
    return f"{name}={_FLOAT.sub(_as_integer, value)}"


def _as_integer(found: re.Match[str]) -> str:
    number = float(found[0])
    return f"{number:.0f}" if number.is_integer() else found[0]


def read_folder_and_options(
    usage: str, arguments: list[str], config: type[_Config]
) -> tuple[Path, _Config]:
    """Reads the command line of a program with a folder and a few options, without Hydra.

    The folder may be written as ``run=``, as for programs that take several runs.
    """
    arguments = [each.removeprefix("run=") for each in arguments]
    words = [each for each in arguments if not each.startswith("-")]
    names = {key.name for key in describe(config)}  # as in `video true`, for a better message
    folders = [each for each in words if "=" not in each and each not in names] or words[:1]
    options = read_options(usage, [each for each in arguments if each not in folders], config)
    if len(folders) != 1:
        known = " ".join(f"[{key.name}={written(key.default)}]" for key in describe(config))
        number = " and ".join(folders) or "none"
        raise UserError(f"One folder is needed, got {number}. Usage: {usage} {known}")
    return Path(folders[0]), options


def read_options(usage: str, arguments: list[str], config: type[_Config]) -> _Config:
    """Reads the command line of a program that has only options, without Hydra.

    A key whose value is a list also accepts a single item: ``at=1000`` is ``at=[1000]``. Words
    without ``=`` are the items of ``run=``, if this key exists.
    """
    answer_help(arguments, usage, config)
    _check_form(arguments, config)
    keys, options = {key.name: key for key in describe(config)}, []
    if "run" in keys and not any(each.startswith("run=") for each in arguments):
        runs = [each for each in arguments if "=" not in each]
        given = [each for each in arguments if each not in runs]
        arguments = [*given, *([f"run=[{','.join(runs)}]"] if runs else [])]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            _reject(f"{argument!r} cannot be parsed")
        if name not in keys:
            raise unknown_key(name, config)
        is_item = keys[name].is_list and value[:1] not in ("", "[")
        options.append(_with_integers(keys[name], f"{name}=[{value}]" if is_item else argument))
    with explaining(config):
        merged: Any = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(options))
    return to_config(merged)


def _check_form(
    arguments: list[str], config: type[Config], flags: Collection[str] = frozenset()
) -> None:
    """Raises an error that shows the right form of ``--seed 3``, ``--seed=3``, ``seed 3``, etc.

    ``flags`` are the program's options that start with dashes.
    """
    known = {key.name: key.types for key in describe(config)} | dict.fromkeys(groups(config), ())
    for position, argument in enumerate(arguments):
        word, equals, value = argument.partition("=")
        name = word.lstrip("-").replace("-", "_")
        if word in flags or not (word.startswith("-") or (name in known and not equals)):
            continue
        if name not in known:
            raise unknown_key(name, config, flags)
        following = [each for each in arguments[position + 1 : position + 3] if each != "="]
        if not value and following and "=" not in following[0] and following[0][:1] != "-":
            value = following[0]
        value = value or ("true" if bool in known[name] else "<value>")
        raise UserError(f"Keys are written without dashes or spaces: write {name}={value}.")


def answer_help(arguments: list[str], usage: str, config: type[Config], recipe: str = "") -> None:
    """Prints the usage, groups and keys of a program and ends it, if ``--help`` asks for them.

    ``recipe`` is the configuration file of a recipe, without its ending.
    """
    if {"--help", "-h"}.isdisjoint(arguments):
        return
    chosen, keys = groups(config), [key for key in describe(config) if not key.is_fixed]
    forms = f"{' [group=choice ...]' if chosen else ''} [key=value ...]{' [-m]' if recipe else ''}"
    lines = [f"Usage: {usage}{forms}", ""]
    lines += textwrap.wrap((config.__doc__ or "").strip().splitlines()[0], _WIDTH)
    if chosen:
        lines.append("\nGroups, with defaults:")
        entries = OmegaConf.load(CONFIGS / f"{recipe}.yaml").defaults
        chains = (entry.items() for entry in entries if not isinstance(entry, str))
        defaults = dict(itertools.chain(*chains))
        for group, meaning in chosen.items():
            choices = ", ".join(choices_of(group))
            lines += _entry(f"{group}={defaults.get(group, '')}", f"{meaning}: {choices}")
        experiments = ", ".join(choices_of("experiment"))
        lines += _entry("+experiment=", f"settings of a study, with -m: {experiments}")
    for group in ("", *chosen):
        lines.append(f"\nKeys of {group}=:" if group else "\nKeys, with defaults:")
        lines += _rows(key for key in keys if key.name.rpartition(".")[0] == group)
    if recipe:
        example = next((key.name for key in keys if key.name.endswith("seed")), "key")
        lines.append("\nOptions:")
        lines += _entry("-m", f"one run for each combination of values: {example}=0,1,2")
        lines += _entry("--cfg job", "print the configuration and exit")
        lines += _entry("--hydra-help", "options of Hydra, which reads the configuration")
    print(*lines, sep="\n", flush=True)
    raise SystemExit


def _rows(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        default = "" if key.default == MISSING else written(key.default)
        notes = [key.range] if key.range else []
        notes += [f"only {', '.join(key.only)}"] if key.only else []
        note = f" [{'; '.join(notes)}]".replace(" ", _HARD_SPACE) if notes else ""
        yield from _entry(f"{key.name}={default}", f"{key.meaning} {note.strip()}")


def _entry(left: str, right: str) -> Iterator[str]:
    wrapped = textwrap.wrap(right, _WIDTH - _LEFT, break_on_hyphens=False)
    shown = f"  {left}".ljust(_LEFT)
    if len(left) + 4 > _LEFT:
        yield shown.rstrip()
    else:
        yield shown + wrapped.pop(0).replace(_HARD_SPACE, " ")
    yield from (" " * _LEFT + line.replace(_HARD_SPACE, " ") for line in wrapped)
