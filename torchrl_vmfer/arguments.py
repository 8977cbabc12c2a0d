"""The arguments of samplers and losses: default, range and meaning of each in one place.

Constructors use these definitions to check their arguments, and the recipes turn them into
configuration keys. This module imports no other package, so that ``--help`` of a recipe is fast.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Argument:
    """An argument of a sampler or a loss: a number within limits, or one of several strings."""

    default: Any
    meaning: str  # what it does, in one line
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_integer: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raises ``ValueError`` for a value of the wrong type or outside the range."""
        if self.choices:
            if value not in self.choices:
                *others, last = map(repr, self.choices)
                expected = f"{', '.join(others)} or {last}"
                raise ValueError(f"{name} must be {expected}, got {value!r}.")
            return
        if getattr(value, "shape", None) == ():  # a tensor or an array
            value = value.item()
        number = numbers.Integral if self.is_integer else numbers.Real
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        is_number = isinstance(value, number) and type(value) is not bool
        if is_number and low <= value <= high:
            return
        what = "be an integer" if self.is_integer else "be a number"
        if self.high is None:
            expected = f"{what} of at least {low:g}"
        else:
            expected = f"lie in [{low:.10g}, {high:.10g}]"
        raise ValueError(f"{name} must {expected}, got {value!r}.")


MODE = Argument(
    "uncertainty",
    "P ∝ factor (uncertainty) or P ∝ 1/rank of the factor (rank)",
    choices=("uncertainty", "rank"),
)
POWER = Argument(  # the limits keep p^power from overflowing
    1.0,
    "P ∝ factor^power; 1: the paper's method, 0: uniform, negative: prefers disagreement",
    low=-100,
    high=100,
)
WEIGHTING = Argument(
    0.0,
    "weights the actor loss of a transition by factor^weighting / its mean; 0: no weights",
    low=-100,
    high=100,
)
INITIAL_FACTOR = Argument(1.0, "factor of a new transition", low=1e-30, high=math.e)
SMOOTHING = Argument(0.0, "weight of the old factor when a factor is updated", low=0, high=0.999999)
POOL_SIZE = Argument(
    None,
    "draw a uniform pool of this size and resample from it; null: the whole buffer",
    low=1,
    is_integer=True,
)
# The limits of exponents keep every power of a float32 a positive number in double precision.
EXPONENT = Argument(
    0.4, "exponent of max(|TD error|, floor), without its sign; 0 is uniform", low=0, high=7
)
FLOOR = Argument(1.0, "smaller absolute TD errors count as this value", low=1e-30, high=1e30)
NORM_POWER = Argument(1.0, "P ∝ norm^power; 0 is uniform", low=0, high=7)
RANK_ALPHA = Argument(0.7, "exponent of the priority; 0 is uniform", low=0, high=100)
SIGNAL_POWER = Argument(
    0.7,
    "P ∝ rank^-abs(power); the largest value ranks first, or the smallest if power < 0",
    low=-100,
    high=100,
)
RANK_BETA = Argument(0.5, "exponent of the importance weights; 1 removes the bias", low=0, high=1)
DECAY = Argument(
    0.996,
    "batch k of a cycle is uniform over the newest fraction decay^k of the buffer",
    low=1e-9,
    high=1,
)
MIN_SIZE = Argument(5000, "smallest number of transitions to draw from", low=1, is_integer=True)
CYCLE = Argument(1000, "batches of the actor per cycle", low=1, is_integer=True)
AGE_EXPONENT = Argument(
    2.0,
    "draws at the fraction u^exponent of the buffer, oldest first, u uniform; 1 is uniform",
    low=0.01,
    high=100,
)
HER_RATIO = Argument(0.8, "fraction of a batch whose goals are relabeled", low=0, high=1)
STRATEGY = Argument("future", "where new goals come from", choices=("future", "final", "episode"))
N_STEP = Argument(
    1,
    "number of rewards in a TD target, at most up to the end of the episode",
    low=1,
    high=1000,
    is_integer=True,
)
TARGET_CRITICS = Argument(2, "critics that form the TD target", low=1, is_integer=True)
USED = Argument(
    "first", "the critic whose direction enters the factor", choices=("first", "min", "mean")
)
OBJECTIVE = Argument(
    "first",
    "what the actor maximizes: the first critic, or the mean of the critics in the TD target",
    choices=("first", "mean"),
)
DIRECTIONS = Argument(
    "action",
    "factors compare gradients with respect to the action, or to the pre-tanh action",
    choices=("action", "pre_tanh"),
)
