"""The place of a run in its sweep."""

from __future__ import annotations

import math
import sys
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

__all__ = ["sweep_position"]


def sweep_position() -> tuple[int, int] | None:
    """The number of this run in its sweep, from 1, and the number of runs; outside it ``None``."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    hydra = HydraConfig.get()
    params: Any = OmegaConf.to_container(hydra.sweeper.get("params") or OmegaConf.create({}))
    given = [argument for argument in sys.argv[1:] if "=" in argument]
    choices = {key: 1 for key in params}
    lines = [f"{key}={value}" for key, value in params.items()] + given
    for override in OverridesParser.create().parse_overrides(lines):
        is_sweep = override.is_sweep_override()
        count = len(list(override.sweep_string_iterator())) if is_sweep else 1
        choices[override.key_or_group] = count
    return int(hydra.job.num) + 1, math.prod(choices.values())
