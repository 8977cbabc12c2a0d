"""The name of a run: in titles, for loggers and in folders."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["folder_name", "group_name", "run_name", "run_title"]


def run_title(cfg: Any) -> str:
    """What a run trains: ``td3 on Hopper-v4, sampler=fresh, replay=per``."""
    return (
        f"{cfg.algorithm} on {cfg.env.name}, sampler={cfg.sampler.name}, replay={cfg.replay.name}"
    )


def group_name(cfg: Any) -> str:
    """The name of a run without its seed: algorithm, task, replay and sampler."""
    return f"{cfg.algorithm}-{cfg.env.name}-{cfg.replay.name}-{cfg.sampler.name}"


def run_name(cfg: Any) -> str:
    """The name of a run: algorithm, task, replay, sampler and seed."""
    return f"{group_name(cfg)}-seed{cfg.seed}"


def folder_name(name: Any) -> str:
    """A value as the name of one folder, which needs no quotes in a shell.

    Example:
        >>> folder_name("my_package:Point-v0"), folder_name("cheetah/run")
        ('my_package-Point-v0', 'cheetah-run')
    """
    return re.sub(r"[^\w.+-]+", "-", str(name))
