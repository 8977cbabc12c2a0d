"""The results of forks: one row for each, and paired differences between arms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from vmfer_recipes.fork.plan import Plan
from vmfer_recipes.report.inference import Estimate, holm, sign_flip_p
from vmfer_recipes.run.tables import read_columns

# The smallest p-value of a sign-flip test with n units is 2^(1-n): below six, none is under 0.05.
ENOUGH_UNITS = 6

COLUMNS = ["run", "seed", "at", "arm", "draw", "return_before", "return_after"]
"""The columns of ``forks.csv``."""


def read_results(plan: Plan) -> pd.DataFrame:
    """The results of all finished forks of a plan, one row for each."""
    rows = []
    for moment in plan.moments:
        source, before = moment.source, moment.return_before
        for fork in moment.forks:
            if fork.is_finished and before is not None:
                place = (str(source.run_dir), source.seed, source.step, fork.arm.name, fork.draw)
                after = read_columns(fork.path / "eval.csv")["return_mean"][-1]
                rows.append((*place, before, after))
    return pd.DataFrame(rows, columns=COLUMNS)


@dataclass(frozen=True)
class Comparison:
    """An arm compared with the reference, over the forks that both have finished."""

    arm: str
    after: float  # the mean return after the fork
    difference: Estimate  # the mean difference from the reference
    covers: list[str]  # the levels with several units, over which its interval is computed
    top_count: int  # the number of units of the highest of these
    wins: float  # the fraction of pairs in which the arm is better; a tie counts half
    pairs: int
    units: str  # what a sign-flip test flips: seeds, checkpoints or draws
    unit_count: int  # how many of these there are
    p: float  # the p-value of this test
    corrected_p: float = math.nan  # p with Holm's correction over the arms


def compare(results: pd.DataFrame, arms: Sequence[str]) -> list[Comparison]:
    """Compares all arms but the first with the first.

    Differences are taken between forks of the same checkpoint and draw. Arms without such a pair
    are left out.
    """
    indexed = results.set_index(["seed", "at", "draw"]).sort_index()
    after = {arm: indexed["return_after"][indexed["arm"] == arm] for arm in arms}
    reference = after[arms[0]]
    comparisons = []
    for arm in arms[1:]:
        mine, other = after[arm].align(reference, join="inner")
        if len(mine):
            comparisons.append(_compared(arm, float(mine.mean()), mine - other))
    corrected = holm([each.p for each in comparisons])
    return [replace(c, corrected_p=p) for c, p in zip(comparisons, corrected, strict=True)]


def _compared(arm: str, after: float, differences: pd.Series) -> Comparison:
    draws = differences.groupby(["seed", "at"])
    checkpoints = draws.mean().groupby("seed")
    # The test flips the signs of the highest level with enough units, or else of draws.
    levels = {"seed": checkpoints.mean(), "checkpoint": draws.mean(), "draw": differences}
    enough = [name for name, values in levels.items() if len(values) >= ENOUGH_UNITS]
    units = [*enough, "draw"][0]
    most = (len(checkpoints), checkpoints.size().max(), draws.size().max())
    # A level with a single unit has no spread, so the interval starts below it.
    nested: Any = [
        [draws.to_numpy() for _, draws in of_seed.groupby("at")]
        for _, of_seed in differences.groupby("seed")
    ]
    while len(nested) == 1 and isinstance(nested, list):
        nested = nested[0]
    return Comparison(
        arm=arm,
        after=after,
        difference=Estimate(float(checkpoints.mean().mean()), *hierarchical_interval(nested)),
        covers=[name for name, count in zip(levels, most, strict=True) if count > 1],
        top_count=len(nested),
        wins=float((differences > 0).mean() + 0.5 * (differences == 0).mean()),
        pairs=len(differences),
        units=units,
        unit_count=len(levels[units]),
        p=sign_flip_p(levels[units].to_numpy()),
    )


def hierarchical_interval(values: Any, repetitions: int = 10_000) -> list[float]:
    """The 95 % percentile interval of the mean of nested values; NaN for a single value.

    The draws of a checkpoint are averaged, then the checkpoints of a seed, then the seeds, so that
    every seed has the same weight. The bootstrap resamples seeds, then the checkpoints within each
    of them, then the draws within each of these.

    Values are a list of seeds, each a list of checkpoints, each an array of draws. Any other depth
    works as well; an array is the lowest level.
    """
    if len(values) < 2:
        return [math.nan, math.nan]
    resampled = _resampled_means(values, repetitions, np.random.default_rng(0))
    return np.percentile(resampled, [2.5, 97.5]).tolist()


def _resampled_means(values: Any, count: int, generator: np.random.Generator) -> np.ndarray:
    """The means of ``count`` independent bootstrap samples of a level and of those below."""
    chosen = generator.integers(len(values), size=(count, len(values)))
    if isinstance(values, np.ndarray):
        return values[chosen].mean(1)
    drawn = np.empty(chosen.shape)
    for number, part in enumerate(values):
        places = chosen == number  # a part that is chosen twice is resampled twice
        drawn[places] = _resampled_means(part, int(places.sum()), generator)
    return drawn.mean(1)
