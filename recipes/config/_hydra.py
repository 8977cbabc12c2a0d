"""The only module of the recipes that uses undocumented parts of Hydra.

``tests/recipes/test_hydra_seam.py`` fails if an upgrade of Hydra removes one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, open_dict

__all__ = ["RELIED_ON", "current_job", "register_sweeper", "without_hydra"]

# The undocumented attributes used below, by the class whose singleton has them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "hydra.core.hydra_config.HydraConfig": ("cfg",),
    "hydra.core.plugins.Plugins": ("class_name_to_class",),
}


def register_sweeper(name: str, conf: Any, sweeper: type[Sweeper]) -> None:
    """Makes Hydra use a sweeper for ``hydra/sweeper=<name>``.

    Args:
        name: the name of the choice; one of Hydra's own is replaced.
        conf: the dataclass of its keys. Its target must lie in the package ``hydra_plugins``.
        sweeper: the class.
    """
    classes = Plugins.instance().class_name_to_class  # first: it registers Hydra's own sweepers
    ConfigStore.instance().store(name, conf, group="hydra/sweeper", provider="vmfer_recipes")
    # Hydra accepts only this package; Plugins.register() would use the class's own.
    classes[conf._target_] = sweeper


@contextmanager
def current_job(composed: DictConfig, number: int) -> Iterator[None]:
    """A context in which values may refer to the job that will start: ``${hydra:job.num}``.

    Args:
        composed: the configuration of the job, with that of Hydra.
        number: its number in a sweep, from 0.
    """
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(composed)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def without_hydra(composed: DictConfig) -> DictConfig:
    """A copy of a composed configuration, as a recipe receives it."""
    task = composed.copy()
    with open_dict(task):
        del task["hydra"]
    return task
