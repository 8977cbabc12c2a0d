"""The only module of the recipes that uses undocumented parts of Hydra.

``tests/recipes/test_hydra_seam.py`` fails if an upgrade of Hydra removes one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, open_dict

__all__ = [
    *("RELIED_ON", "SweepComposer", "current_job", "register_launcher", "register_sweeper"),
    "without_hydra",
]

# The undocumented attributes used below, by the class or the singleton that has them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "hydra._internal.config_loader_impl.ConfigLoaderImpl": ("_apply_overrides_to_config",),
    "hydra.core.hydra_config.HydraConfig": ("cfg",),
    "hydra.core.plugins.Plugins": ("class_name_to_class",),
}


def register_sweeper(name: str, conf: Any, sweeper: type[Sweeper]) -> None:
    """Makes Hydra use a sweeper for ``hydra/sweeper=<name>``."""
    _register("hydra/sweeper", name, conf, sweeper)


def register_launcher(name: str, conf: Any, launcher: type[Launcher]) -> None:
    """Makes Hydra use a launcher for ``hydra/launcher=<name>``."""
    _register("hydra/launcher", name, conf, launcher)


def _register(group: str, name: str, conf: Any, plugin: type[Plugin]) -> None:
    classes = Plugins.instance().class_name_to_class  # first: it registers those of Hydra
    ConfigStore.instance().store(name, conf, group=group, provider="vmfer_recipes")
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
def current_job(composed: DictConfig, number: int) -> Iterator[None]:
    """A context in which values may refer to the job that will start: ``${hydra:job.num}``."""
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(composed)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def without_hydra(composed: DictConfig) -> DictConfig:
    """A composed configuration as a recipe receives it. The argument is changed, which is fast."""
    with open_dict(composed):
        del composed["hydra"]
    return composed
