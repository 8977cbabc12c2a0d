"""The only module of the recipes that uses undocumented parts of Hydra.

``tests/recipes/test_hydra_seam.py`` fails if an upgrade of Hydra removes one of them.
"""

from __future__ import annotations

import copy
import functools
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin
from omegaconf import DictConfig, open_dict

# The undocumented attributes used below, by the class or the singleton that has them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "hydra._internal.config_loader_impl.ConfigLoaderImpl": ("_apply_overrides_to_config",),
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper": ("split_arguments",),
    "hydra.core.hydra_config.HydraConfig": ("cfg",),
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


class SweepComposer:
    """Composes the runs of a sweep as Hydra does, each combination of choices of groups once.

    Composing takes Hydra tens of milliseconds. Values of keys are applied to a copy.

    Args:
        loader: Hydra's.
        master: the configuration of the sweep.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._parse = functools.cache(OverridesParser.create().parse_override)
        self._is_group = functools.cache(
            lambda name: bool({*"/@"} & {*name} or loader.get_group_options(name))
        )
        self._load = functools.cache(
            lambda *choices: loader.load_sweep_config(master, list(choices))
        )

    def __call__(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run, with that of Hydra."""
        parsed = [self._parse(each) for each in overrides]
        task = [each for each in parsed if not each.is_hydra_override()]
        values = [each for each in task if not self._is_group(each.key_or_group)]
        choices = [str(each.input_line) for each in parsed if each not in values]
        composed = copy.deepcopy(self._load(*choices))
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        job, format_ = composed.hydra.job, composed.hydra.job.config.override_dirname
        composed.hydra.overrides.task = [each.input_line for each in task]
        job.override_dirname = get_overrides_dirname(
            task, list(format_.exclude_keys), format_.item_sep, format_.kv_sep
        )
        return composed


@contextmanager
def current_job(composed: DictConfig, number: int) -> Iterator[DictConfig]:
    """A context in which values may refer to the job that will start: ``${hydra:job.num}``.

    It yields the configuration without Hydra's part, as a recipe receives it. For speed, the
    argument is changed in place.
    """
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(composed)
    with open_dict(composed):
        del composed["hydra"]
    try:
        yield composed
    finally:
        HydraConfig.instance().cfg = before
