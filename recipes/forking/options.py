"""The keys of ``fork.py``."""

from __future__ import annotations

from dataclasses import dataclass

from vmfer_recipes.training.keys import MISSING, Config, key

__all__ = ["ForkConfig"]


@dataclass
class ForkConfig(Config):
    """Continues several methods from the same checkpoints and compares their returns."""

    run: list[str] = key(
        MISSING, "run directories that differ only in their seed, or a pattern such as '.../seed*'"
    )
    at: list[int] = key([], "steps of the checkpoints; []: all in checkpoint/kept", low=1)
    arms: list[str] = key(
        ["fresh", "vmf_uncertainty", "vmf_rank"],
        "methods: choices of sampler=, with or without overrides: 'vmf_rank directions=pre_tanh'",
    )
    baseline: str | None = key(None, "arm that the others are compared with; null: the first")
    mode: str = key(
        "live",
        "full training (live), or updates of the actor only (frozen)",
        choices=("live", "frozen"),
    )
    steps: int = key(10_000, "environment steps of a fork with mode=live", low=1)
    updates: int = key(500, "updates of the actor with mode=frozen", low=1)
    draws: int = key(
        5, "repetitions of each arm, with different random numbers", low=1, high=10_000
    )
    num_eval_episodes: int | None = key(
        None, "episodes of an evaluation, before and after; null: as in the first run", low=1
    )
    out: str | None = key(None, "directory of all output; null: in runs/forks")
