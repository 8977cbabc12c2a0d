"""What the keys of a configuration may hold."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from training.errors import UserError, first_line, nearest

__all__ = ["Config", "check", "known_keys", "plain"]


class Config(SimpleNamespace):
    """A configuration as plain attributes, which a loop can read in no time."""


def plain(cfg: DictConfig) -> Config:
    """Takes a configuration out of OmegaConf, where reading a key takes 20 µs and more."""
    return Config(
        **{
            str(key): plain(value)
            if isinstance(value, DictConfig)
            else (list(value) if isinstance(value, ListConfig) else value)
            for key, value in cfg.items()
        }
    )


# Whole numbers and their smallest values.
_INTEGERS = {
    "seed": 0,
    "total_frames": 1,
    "init_random_frames": 0,
    "utd_ratio": 1,
    "num_critics": 1,
    "batch_size": 1,
    "eval_interval": 1,
    "num_eval_episodes": 1,
    "log_interval": 1,
    "checkpoint_interval": 1,
    "threads": 1,
    "policy_delay": 1,
    "replay.buffer_size": 1,
    "sampler.pool_size": 1,
    "sampler.num_candidates": 1,
}
# Numbers, and between which values they lie.
_NUMBERS: dict[str, tuple[float, float]] = {
    "gamma": (0, 1),
    "tau": (0, 1),
    "critic_lr": (0, math.inf),
    "actor_lr": (0, math.inf),
    "alpha_lr": (0, math.inf),
    "alpha_init": (1e-9, math.inf),
    "exploration_noise": (0, math.inf),
    "target_noise": (0, math.inf),
    "target_noise_clip": (0, math.inf),
    "actor_noise": (0, math.inf),
    "actor_noise_clip": (0, math.inf),
    "replay.alpha": (0, math.inf),
    "replay.beta": (0, math.inf),
    "replay.her_ratio": (0, 1),
    "replay.clip": (1e-9, math.inf),
    "sampler.initial_factor": (1e-9, math.e),
    "sampler.smoothing": (0, 0.999999),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "resume": (True, False),
    "fast": (True, False),
    "compile": (True, False),
    "entropy_gradient": (True, False),
    "sampler.kind": ("shared", "fresh", "vmf", "pool", "direct"),
    "sampler.mode": ("uncertainty", "rank"),
    "replay.kind": ("uniform", "per", "per_rank", "her"),
    "replay.strategy": ("future", "final", "episode"),
    "logger.kind": ("csv", "tensorboard", "wandb"),
    "logger.offline": (True, False),
}
_TEXTS = ("run_dir", "algorithm", "device", "env.name", "sampler.name", "replay.name")
_OTHERS = ("hidden", "target_entropy", "logger.project")


def known_keys() -> set[str]:
    """All keys that a configuration may have."""
    return {*_INTEGERS, *_NUMBERS, *_CHOICES, *_TEXTS, *_OTHERS}


def check(cfg: DictConfig, algorithm: str) -> None:
    """Refuses values that cannot work, before anything is made or written."""
    try:
        OmegaConf.resolve(cfg)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{' '.join(sys.argv[1:])!r} cannot be resolved ({first_line(error)}): refer to keys "
            "that exist."
        ) from error
    for key in _leaves(cfg):
        if key not in known_keys():
            raise UserError(f"There is no key {key}. Did you mean: {nearest(key, known_keys())}?")
        _check_value(key, OmegaConf.select(cfg, key))
    if cfg.algorithm != algorithm:
        raise UserError(f"algorithm={cfg.algorithm} belongs to another recipe: leave it out.")
    if cfg.total_frames <= cfg.init_random_frames:
        raise UserError(
            f"total_frames={cfg.total_frames} leaves nothing to learn after "
            f"init_random_frames={cfg.init_random_frames}: raise the first or lower the second."
        )
    if cfg.sampler.kind in ("vmf", "pool", "direct") and cfg.num_critics < 2:
        raise UserError(
            f"sampler={cfg.sampler.name} needs critics that can disagree, got num_critics=1: "
            "use at least 2, or sampler=uniform."
        )
    if cfg.sampler.kind == "direct" and cfg.get("entropy_gradient"):
        raise UserError(
            f"entropy_gradient=true has no part in the scores of sampler={cfg.sampler.name}: leave "
            "it out, or use another sampler."
        )
    _check_device(cfg.device)


def _leaves(cfg: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in map(str, cfg):
        node = cfg._get_node(name)
        is_group = isinstance(node, DictConfig)
        keys += _leaves(cfg[name], f"{prefix}{name}.") if is_group else [f"{prefix}{name}"]
    return keys


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
    elif key in _CHOICES:
        if value not in _CHOICES[key] or isinstance(value, int) != isinstance(
            _CHOICES[key][0], bool
        ):
            choices = ", ".join(str(choice).lower() for choice in _CHOICES[key])
            raise UserError(f"{key} must be one of {choices}, got {value!r}.")
    elif key in _TEXTS:
        if not (isinstance(value, str) and value):
            raise UserError(f"{key} must be a name, got {value!r}.")
    elif key == "hidden":
        if not isinstance(value, ListConfig) or not all(
            type(size) is int and size > 0 for size in value
        ):
            raise UserError(f"hidden must be a list of layer sizes such as [256,256], got {value}.")
    elif key == "target_entropy" and not (value == "auto" or is_number):
        raise UserError(f"target_entropy must be auto or a number, got {value!r}.")


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except Exception as error:
        raise UserError(
            f"device={name} cannot be used ({first_line(error)}): use device=cpu, or cuda on a "
            "machine that has it."
        ) from error
