"""What the keys of ``configs/shooting.yaml`` may hold."""

from __future__ import annotations

import math
import sys
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from training.errors import UserError, first_line, nearest

__all__ = ["check", "known_keys"]

# Whole numbers and their smallest values.
_INTEGERS = {
    "seeds": 2,  # one has no interval
    "first_seed": 0,
    "updates": 1,
    "policy_delay": 1,
    "batch_size": 1,
    "log_interval": 1,
    "threads": 1,
}
# Numbers, and between which values they lie.
_NUMBERS: dict[str, tuple[float, float]] = {
    "critic_lr": (0, math.inf),
    "actor_lr": (0, math.inf),
    "actor_noise": (0, math.inf),
    "actor_noise_clip": (0, math.inf),
    "low_uncertainty": (0, 1),
    "largest_angle": (0, 180),
    "example_noise": (0, math.inf),
}


def known_keys() -> set[str]:
    """All keys of the configuration."""
    return {*_INTEGERS, *_NUMBERS, "hidden", "run_dir"}


def check(cfg: DictConfig) -> None:
    """Refuses values that cannot work, before anything is written."""
    try:
        OmegaConf.resolve(cfg)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{' '.join(sys.argv[1:])!r} cannot be resolved ({first_line(error)}): refer to keys "
            "that exist."
        ) from error
    for key in map(str, cfg):
        if key not in known_keys():
            raise UserError(f"There is no key {key}. Did you mean: {nearest(key, known_keys())}?")
        _check_value(key, cfg[key])


def _check_value(key: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _INTEGERS:
        least = _INTEGERS[key]
        if not (is_number and isinstance(value, int) and value >= least):
            raise UserError(f"{key} must be a whole number of at least {least}, got {value!r}.")
    elif key in _NUMBERS:
        low, high = _NUMBERS[key]
        if not (is_number and low <= value <= high and value < math.inf):
            raise UserError(f"{key} must be a number from {low:g} to {high:g}, got {value!r}.")
    elif key == "hidden":
        if not isinstance(value, ListConfig) or not all(
            type(size) is int and size > 0 for size in value
        ):
            raise UserError(f"hidden must be a list of layer sizes such as [64,64], got {value}.")
    elif not (isinstance(value, str) and value):
        raise UserError(f"{key} must be a name, got {value!r}.")
