"""A number with its interval."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Estimate"]


class Estimate(NamedTuple):
    """A number and its 95 % interval, which is NaN where there is none.

    Example:
        >>> Estimate(3.0, 1.0, 6.0).shown("{:.1f}")
        '3.0 [1.0, 6.0]'
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def shown(self, pattern: str) -> str:
        """Number and interval as a string."""
        if math.isnan(self.low):
            return f"{pattern.format(self.value)} [one seed]"
        value, low, high = map(pattern.format, self)
        return f"{value} [{low}, {high}]"
