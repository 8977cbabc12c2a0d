"""Estimates, intervals and tests for the small samples of a study.

A cell is the scores of the seeds of one method on one task. Random numbers have a fixed seed, so
that the same scores give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rliable.library import get_interval_estimates
from scipy import stats
from statsmodels.stats.multitest import multipletests

REPETITIONS = 2000
_SEED = 20240731
_MOST_LISTED = 200_000  # more divisions or signs than this are drawn instead of listed
_DRAWN = 20_000


class Estimate(NamedTuple):
    """A number and its 95 % interval, which is NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def shown(self, pattern: str, without: str = "one seed") -> str:
        """Number and interval as a string, with the reason if there is no interval."""
        value, low, high = map(pattern.format, self)
        return f"{value} [{without if math.isnan(self.low) else f'{low}, {high}'}]"


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean over seeds (axis 0) without the lowest and highest quarter, from four seeds on."""
    cut = len(scores) // 4  # SciPy's trim_mean does the same in fifty times the time
    return np.sort(scores, axis=0)[cut : len(scores) - cut].mean(0)


def mean_improvement(*cells: np.ndarray) -> float:
    """The mean score as a percentage of the baseline's, averaged over tasks."""
    return 100 * float(np.mean([x.mean() / y.mean() for x, y in _tasks(cells)]))


def probability_of_improvement(*cells: np.ndarray) -> float:
    """The fraction of pairs of seeds in which the score beats the baseline's, averaged over tasks.

    A tie counts half.
    """
    wins = [np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y)) for x, y in _tasks(cells)]
    return float(np.mean(wins))


def _tasks(cells: Sequence[np.ndarray]) -> zip[tuple[np.ndarray, np.ndarray]]:
    """Pairs the scores of the method, which come first, with those of the baseline, by task."""
    half = len(cells) // 2
    return zip(cells[:half], cells[half:], strict=True)


def estimate(statistic: Callable[..., Any], *cells: np.ndarray) -> Estimate:
    """A statistic of cells and its interval. There is none if a cell has a single seed.

    Cells are resampled separately, so that they may have different numbers of seeds.
    """
    found = _estimates(lambda *resampled: np.array([statistic(*resampled)]), cells)
    return Estimate(*found[:, 0].tolist())


def column_estimates(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and interquartile mean (``iqm``) over seeds of each column of ``[seeds, columns]``.

    Each is ``[3, columns]``: the values, and the ends of their intervals.
    """

    def both(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values.mean(0), interquartile_mean(values)])

    mean, iqm = np.split(_estimates(both, [scores]), 2, axis=1)
    return {"mean": mean, "iqm": iqm}


def _estimates(statistic: Callable[..., np.ndarray], cells: Sequence[np.ndarray]) -> np.ndarray:
    """Values, low ends and high ends ``[3, values]`` of a statistic with several values."""
    values = statistic(*cells)
    if min(map(len, cells)) < 2:
        return np.stack([values, *2 * [np.full_like(values, math.nan)]])
    # rliable draws from NumPy's global generator, whatever random_state it is given.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(_SEED)  # noqa: NPY002
    try:
        _, intervals = get_interval_estimates(
            {"": list(cells)}, statistic, reps=REPETITIONS, confidence_interval_size=0.95
        )
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return np.stack([values, *intervals[""]])


def paired_difference(x: np.ndarray, y: np.ndarray, repetitions: int = 10_000) -> Estimate:
    """The mean difference of paired scores. A single pair has no interval.

    Pairs are resampled, so that what both scores of a pair have in common cancels out.
    """
    value = float((x - y).mean())
    if len(x) < 2:
        return Estimate(value)
    resampling: dict[str, Any] = {"paired": True, "n_resamples": repetitions}
    resampling |= {"method": "percentile", "rng": np.random.default_rng(0)}
    found = stats.bootstrap((x, y), _mean_difference, **resampling)
    return Estimate(value, *map(float, found.confidence_interval))


def _mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    return x.mean(axis) - y.mean(axis)


def permutation_p(x: np.ndarray, y: np.ndarray) -> float:
    """The two-sided p-value of a permutation test of the difference in means.

    It is twice the fraction of all divisions of the scores into two groups of these sizes whose
    means differ at least as much as observed, in the same direction.
    """
    scores = np.concatenate([x, y])
    if min(len(x), len(y)) == 1:  # any of the scores could have been the single one
        single = x if len(x) == 1 else y
        return min(1.0, 2 * float(min((scores >= single).mean(), (scores <= single).mean())))
    return _randomization_p((x, y), _mean_difference, math.comb(len(scores), len(x)))


def sign_flip_p(differences: np.ndarray) -> float:
    """The two-sided p-value of a sign-flip test of paired differences.

    It is twice the fraction of all combinations of signs whose mean is at least as far from zero
    as observed, in the same direction.
    """
    if len(differences) == 1:
        return 1.0
    return _randomization_p((differences,), lambda x, axis: x.mean(axis), 2 ** len(differences))


def _randomization_p(
    samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], count: int
) -> float:
    scale = np.abs(np.concatenate(samples)).max() or 1.0

    def rounded(*resampled: np.ndarray, axis: int) -> np.ndarray:
        # Equal sums may differ in their last digits.
        return np.round(statistic(*resampled, axis=axis) / scale, 9)

    found = stats.permutation_test(
        samples,
        rounded,
        permutation_type="independent" if len(samples) > 1 else "samples",
        vectorized=True,
        n_resamples=np.inf if count <= _MOST_LISTED else _DRAWN,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def best_possible_p(*tasks: tuple[int, int]) -> float:
    """The lowest p-value that a permutation test of seeds and seeds of the baseline can have."""
    return min(1.0, 2 / math.prod(math.comb(mine + other, mine) for mine, other in tasks))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values, in the order of the given ones."""
    return multipletests(p_values, method="holm")[1].tolist() if p_values else []


def smallest_detectable_difference(x: np.ndarray, y: np.ndarray, level: float = 0.05) -> float:
    """The difference in means that a two-sided t-test detects with a probability of 80 %.

    It is NaN if no sample has two scores, so that the spread is unknown. Of logarithms, it is that
    of the smallest ratio.
    """
    freedom = len(x) + len(y) - 2
    if freedom < 1:
        return math.nan
    variance = (len(x) * x.var() + len(y) * y.var()) / freedom
    quantiles = stats.t.ppf(1 - level / 2, freedom) + stats.t.ppf(0.8, freedom)
    return float(quantiles * math.sqrt(variance * (1 / len(x) + 1 / len(y))))
