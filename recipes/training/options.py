"""The configuration of a training run: its keys, and what they may hold."""

from __future__ import annotations

import importlib.util
import math
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig, ListConfig

from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.rules import Rules

__all__ = ["RULES", "Config", "check", "plain"]

RULES = Rules(
    integers={
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
        "collector.num_workers": 1,
        "collector.max_lead": 0,
        "collector.frames_per_batch": 1,
    },
    numbers={
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
    },
    choices={
        "resume": (True, False),
        "fast": (True, False),
        "compile": (True, False),
        "entropy_gradient": (True, False),
        "sampler.kind": ("shared", "fresh", "vmf", "pool", "direct"),
        "sampler.mode": ("uncertainty", "rank"),
        "replay.kind": ("uniform", "per", "per_rank", "her"),
        "replay.strategy": ("future", "final", "episode"),
        "collector.kind": ("single", "multi_sync", "multi_async", "ray"),
        "logger.kind": ("csv", "tensorboard", "wandb"),
        "logger.offline": (True, False),
    },
    texts=(
        "run_dir",
        "algorithm",
        "device",
        "env.name",
        "sampler.name",
        "replay.name",
        "logger.project",
    ),
    others=("target_entropy", "keep_checkpoints_at"),
)


class Config(SimpleNamespace):
    """A configuration as plain attributes, which a loop can read in no time."""

    def as_dict(self) -> dict[str, Any]:
        """The configuration as nested dictionaries."""
        return {
            key: value.as_dict() if isinstance(value, Config) else value
            for key, value in vars(self).items()
        }


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


def check(cfg: DictConfig) -> None:
    """Refuses combinations of values that cannot work, before anything is made or written."""
    entropy = cfg.get("target_entropy", "auto")
    if entropy != "auto" and not (type(entropy) in (int, float) and abs(entropy) < 1e9):
        raise UserError(f"target_entropy must be auto or a number, got {entropy!r}.")
    kept = cfg.keep_checkpoints_at
    if not (isinstance(kept, ListConfig) and all(type(step) is int and step > 0 for step in kept)):
        raise UserError(
            f"keep_checkpoints_at must be a list of steps such as [100000,200000], got {kept!r}."
        )
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
    if cfg.collector.kind != "single":
        _check_workers(cfg, f"collector={cfg.collector.kind}")


def _check_workers(cfg: DictConfig, choice: str) -> None:
    is_ray = cfg.collector.kind == "ray"
    if cfg.device != "cpu":
        raise UserError(
            f"{choice} shares the networks with its workers on the CPU, got device={cfg.device}: "
            "use device=cpu, or collector=single."
        )
    if cfg.replay.kind == "her":
        raise UserError(
            f"replay=her needs whole episodes, which the workers of {choice} mix: use "
            "collector=single."
        )
    if cfg.replay.kind == "per" and not is_ray:
        raise UserError(
            f"TorchRL's sampler of replay=per cannot be handed to the workers of {choice}: use "
            "replay=per_rank, or collector=ray."
        )
    if is_ray and cfg.sampler.kind in ("pool", "direct"):
        raise UserError(
            f"sampler={cfg.sampler.name} draws from a buffer in this process, which collector=ray "
            "has not: use another collector or another sampler."
        )
    if is_ray and importlib.util.find_spec("ray") is None:
        raise UserError("collector=ray needs the package ray: pip install '.[ray]'.")


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name).item()
    except Exception as error:
        raise UserError(
            f"device={name} cannot be used ({first_line(error)}): use device=cpu, or cuda on a "
            "machine that has it."
        ) from error
