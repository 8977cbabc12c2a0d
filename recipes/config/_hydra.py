"""The only module of the recipes that uses undocumented parts of Hydra.

``tests/recipes/test_hydra_seam.py`` fails if an upgrade of Hydra removes one of them.
"""

from __future__ import annotations

import copy
import functools
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin
from omegaconf import DictConfig, open_dict

# The undocumented attributes used below, by the class or the singleton that has them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "hydra._internal.config_loader_impl.ConfigLoaderImpl": ("_apply_overrides_to_config",),
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper": ("split_arguments",),
    "hydra.core.plugins.Plugins": ("class_name_to_class",),
}


def option_parser(on_error: Callable[[str], NoReturn]) -> tuple[ArgumentParser, set[str]]:
    """Returns Hydra's argument parser, which calls ``on_error``, and the names of its options."""
    parser = get_args_parser()
    parser.error = on_error  # type: ignore[assignment,method-assign]
    flags = {name for action in parser._actions for name in action.option_strings}
    return parser, flags - {"--experimental-rerun"}


def combinations(overrides: Iterable[Override]) -> list[list[str]]:
    """The overrides of the runs of a sweep, each with one value for each key."""
    return BasicSweeper.split_arguments([*overrides], max_batch_size=None)[0]


def register_plugins(sweeper: type[Plugin], launcher: type[Plugin]) -> None:
    """Lets Hydra use a sweeper instead of its basic one, and the launcher of populations."""
    classes = Plugins.instance().class_name_to_class
    classes[f"{BasicSweeper.__module__}.BasicSweeper"] = sweeper
    # Hydra accepts other targets in the package `hydra_plugins` only.
    classes["hydra_plugins.vmfer_recipes.PopulationLauncher"] = launcher


def sweep_composer(
    loader: ConfigLoader, master: DictConfig
) -> Callable[[Sequence[str]], DictConfig]:
    """A function that composes a run of a sweep from its overrides, as Hydra does.

    Composing takes Hydra tens of milliseconds. Each combination of choices of groups is composed
    once, and values of keys are applied to a copy of ``master``, the configuration of the sweep.
    """
    parse = functools.cache(OverridesParser.create().parse_override)

    @functools.cache
    def is_group(name: str) -> bool:
        return bool({*"/@"} & {*name} or loader.get_group_options(name))

    @functools.cache
    def load(*choices: str) -> DictConfig:
        composed = loader.load_sweep_config(master, list(choices))
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def compose(overrides: Sequence[str]) -> DictConfig:
        values, choices = [], []
        for each in map(parse, overrides):
            if each.is_hydra_override() or is_group(each.key_or_group):
                choices.append(str(each.input_line))
            else:
                values.append(each)
        composed = copy.deepcopy(load(*choices))
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        return composed

    return compose
