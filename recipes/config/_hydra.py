"""The only module of the recipes that uses undocumented parts of Hydra.

``tests/recipes/test_hydra_seam.py`` fails if an upgrade of Hydra removes one of them.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin
from omegaconf import DictConfig, open_dict

# The undocumented attributes used below, by the class or the singleton that has them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "hydra._internal.config_loader_impl.ConfigLoaderImpl": ("_apply_overrides_to_config",),
    "hydra.core.hydra_config.HydraConfig": ("cfg",),
    "hydra.core.plugins.Plugins": ("class_name_to_class",),
}


def option_parser(on_error: Callable[[str], NoReturn]) -> tuple[ArgumentParser, set[str]]:
    """Returns Hydra's argument parser, which calls ``on_error``, and the names of its options."""
    parser = get_args_parser()
    parser.error = on_error  # type: ignore[assignment,method-assign]
    flags = {name for action in parser._actions for name in action.option_strings}
    return parser, flags - {"--experimental-rerun"}


def register_plugin(group: str, name: str, conf: Any, plugin: type[Plugin]) -> None:
    """Registers a sweeper or a launcher with Hydra, for ``hydra/sweeper=<name>`` and the like."""
    classes = Plugins.instance().class_name_to_class  # first: it registers those of Hydra
    ConfigStore.instance().store(name, conf, group=f"hydra/{group}", provider="vmfer_recipes")
    # Hydra accepts targets in the package `hydra_plugins` only.
    classes[conf._target_] = plugin


class SweepComposer:
    """Composes the runs of a sweep as Hydra does, each combination of choices of groups once.

    Composing takes Hydra tens of milliseconds. Values of keys are applied to a copy.

    Args:
        loader: Hydra's.
        master: the configuration of the sweep.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader, self._master = loader, master
        self._parser = OverridesParser.create()
        self._parsed: dict[str, tuple[Override, bool]] = {}
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run, with that of Hydra."""
        parsed = [self._parse(each) for each in overrides]
        choices = tuple(str(each.input_line) for each, is_value in parsed if not is_value)
        if choices not in self._composed:
            composed = self._loader.load_sweep_config(self._master, list(choices))
            self._composed[choices] = composed
        composed = copy.deepcopy(self._composed[choices])
        values = [each for each, is_value in parsed if is_value]
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        task = [each for each, _ in parsed if not each.is_hydra_override()]
        job, format_ = composed.hydra.job, composed.hydra.job.config.override_dirname
        composed.hydra.overrides.task = [each.input_line for each in task]
        job.override_dirname = get_overrides_dirname(
            task, list(format_.exclude_keys), format_.item_sep, format_.kv_sep
        )
        return composed

    def _parse(self, text: str) -> tuple[Override, bool]:
        """An override, and whether it is the value of a key."""
        if text not in self._parsed:
            override = self._parser.parse_override(text)
            name = override.key_or_group
            is_group = "/" in name or "@" in name or bool(self._loader.get_group_options(name))
            self._parsed[text] = override, not (is_group or override.is_hydra_override())
        return self._parsed[text]


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
