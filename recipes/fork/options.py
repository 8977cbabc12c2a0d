"""The keys of ``fork.py``."""

from __future__ import annotations

from dataclasses import dataclass

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import MISSING, Config, key

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
    steps: int | None = key(None, "environment steps with mode=live; null: 10,000", low=1)
    updates: int | None = key(None, "updates of the actor with mode=frozen; null: 500", low=1)
    draws: int = key(
        5, "repetitions of each arm, with different random numbers", low=1, high=10_000
    )
    num_eval_episodes: int | None = key(
        None, "episodes of an evaluation, before and after; null: as in the first run", low=1
    )
    out: str | None = key(None, "directory of all output; null: in runs/forks")

    @property
    def length(self) -> int:
        """The number of steps or updates of a fork."""
        return (self.steps or 10_000) if self.mode == "live" else (self.updates or 500)

    def check_length(self) -> None:
        """Raises an error if the length of the other mode is given."""
        other = "updates" if self.mode == "live" else "steps"
        if getattr(self, other) is not None:
            raise UserError(
                f"{other}={getattr(self, other)} has no effect with mode={self.mode}: remove "
                "it, or change the mode."
            )
