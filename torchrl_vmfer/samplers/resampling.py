"""Resampling from a pool of candidates by their factors."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from torchrl_vmfer.samplers.power_distribution import draw_by_inversion, powers
from torchrl_vmfer.samplers.rank_distribution import RankDistribution

__all__ = ["Mode", "Resampling", "check_mode", "check_pool_size"]

Mode = Literal["uncertainty", "rank"]


def check_mode(mode: str) -> None:
    """Raises an error for an unknown mode."""
    if mode not in ("uncertainty", "rank"):
        raise ValueError(f"mode must be 'uncertainty' or 'rank', got {mode!r}.")


def check_pool_size(name: str, size: int) -> None:
    """Raises an error unless the number of candidates is an integer of at least 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {size!r}.")


class Resampling:
    """The distribution over the members of a pool, given their factors.

    Args:
        mode: ``"uncertainty"`` (P ∝ factor) or ``"rank"`` (P ∝ 1/rank within the pool, where the
            highest factor has rank 1; equal factors share the probability of their ranks).
        power: with ``"uncertainty"``, P ∝ factor^power.
    """

    def __init__(self, mode: Mode, power: float = 1.0) -> None:
        self.mode = mode
        self.power = power
        self._ranks = RankDistribution()

    def draw(
        self, factors: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draws positions in the pool, with replacement."""
        if self.mode == "uncertainty":
            return draw_by_inversion(powers(factors, self.power), count, generator)
        self._ranks.mark_all()
        return self._ranks.draw(factors, count, generator)

    def probabilities(self, factors: np.ndarray) -> np.ndarray:
        """The probability of each position."""
        if self.mode == "rank":
            self._ranks.mark_all()
            return self._ranks.probabilities(factors)
        weights = powers(factors, self.power)
        return weights / weights.sum()
