"""Tests and intervals for the small samples of a study, as pure functions on NumPy arrays.

Every function that uses random numbers has its own generator with a fixed seed, so that the same
scores give the same numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from vmfer_recipes.reporting.estimate import Estimate

__all__ = [
    "PairedEstimates",
    "hierarchical_bootstrap",
    "holm",
    "paired_bootstrap",
    "permutation_p",
    "sign_flip_p",
    "smallest_detectable_difference",
    "smallest_detectable_ratio",
]

Nested = Sequence["Nested"] | Sequence[np.ndarray] | np.ndarray

REPETITIONS = 10_000
_MOST_LISTED = 200_000  # more divisions or signs than this are drawn instead of listed
_DRAWN = 20_000


def hierarchical_bootstrap(
    values: Nested,
    statistic: Callable[..., np.ndarray] = np.mean,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Estimate:
    """A statistic of nested values with a 95 % percentile interval.

    The statistic reduces the draws of a checkpoint to one number, then the checkpoints of a seed,
    then the seeds. Every seed has the same weight, however many values it has. The bootstrap
    resamples seeds, then the checkpoints within each of them, then the draws within each of these.

    Args:
        values: a list of seeds, each a list of checkpoints, each an array of draws. Any other
            depth works as well; an array is the lowest level.
        statistic: a function with an argument ``axis``, such as ``np.mean`` or ``np.median``.
        repetitions: the number of bootstrap samples.
        seed: of the random numbers.

    Returns:
        the estimate. It has no interval if there is a single seed, which says nothing about
        other seeds.

    Example:
        >>> seeds = [[np.array([1.0, 3.0])], [np.array([4.0]), np.array([6.0, 6.0, 6.0])]]
        >>> hierarchical_bootstrap(seeds).value  # the mean of 2 and of the mean of 4 and 6
        3.5
    """
    _check_nested(values)
    value = float(_reduced(values, statistic))
    if len(values) < 2:
        return Estimate(value)
    resampled = _resampled(values, statistic, repetitions, np.random.default_rng(seed))
    return _with_percentiles(value, resampled)


def _check_nested(values: Nested) -> None:
    if len(values) == 0:
        raise ValueError("A level of the values is empty: leave out what has no values.")
    if not _is_lowest(values):
        for part in values:
            _check_nested(part)
    elif not np.isfinite(np.asarray(values)).all():
        raise ValueError("The values are not all finite: leave out those that are missing.")


def _is_lowest(values: Nested) -> bool:
    return not hasattr(values[0], "__len__")


def _reduced(values: Nested, statistic: Callable[..., np.ndarray]) -> np.ndarray:
    if _is_lowest(values):
        return statistic(np.asarray(values, float), axis=0)
    return statistic(np.array([_reduced(part, statistic) for part in values]), axis=0)


def _resampled(
    values: Nested, statistic: Callable[..., np.ndarray], count: int, generator: np.random.Generator
) -> np.ndarray:
    """The statistic of ``count`` independent bootstrap samples of a level and of those below."""
    chosen = generator.integers(len(values), size=(count, len(values)))
    if _is_lowest(values):
        return statistic(np.asarray(values, float)[chosen], axis=1)
    drawn = np.empty(chosen.shape)
    for number, part in enumerate(values):
        places = chosen == number  # a part that is chosen twice is resampled twice
        drawn[places] = _resampled(part, statistic, int(places.sum()), generator)
    return statistic(drawn, axis=1)


def _with_percentiles(value: float, resampled: np.ndarray) -> Estimate:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


class PairedEstimates(NamedTuple):
    """The comparison of paired scores: mean difference, and ratio of means if it is defined."""

    difference: Estimate
    ratio: Estimate | None


def paired_bootstrap(
    x: np.ndarray, y: np.ndarray, repetitions: int = REPETITIONS, seed: int = 0
) -> PairedEstimates:
    """The mean difference and the ratio of means of paired scores, with 95 % intervals.

    Pairs are resampled, so that what both scores of a pair have in common cancels out.

    Args:
        x: scores of a method, one per seed.
        y: scores of its baseline with the same seeds, in the same order.
        repetitions: the number of bootstrap samples.
        seed: of the random numbers.

    Returns:
        the difference ``x - y``, and the ratio ``x / y`` unless a score of ``y`` is zero or less.
        A single pair has no interval.

    Example:
        >>> paired_bootstrap(np.array([12.0, 22.0]), np.array([10.0, 20.0])).difference
        Estimate(value=2.0, low=2.0, high=2.0)
    """
    x, y = _scores(x), _scores(y)
    if len(x) != len(y):
        raise ValueError(f"Paired scores need equal numbers of seeds, got {len(x)} and {len(y)}.")
    is_positive = bool((y > 0).all())
    difference, ratio = float((x - y).mean()), float(x.mean() / y.mean()) if is_positive else None
    if len(x) < 2:
        return PairedEstimates(Estimate(difference), None if ratio is None else Estimate(ratio))
    chosen = np.random.default_rng(seed).integers(len(x), size=(repetitions, len(x)))
    of_x, of_y = x[chosen].mean(1), y[chosen].mean(1)
    return PairedEstimates(
        _with_percentiles(difference, of_x - of_y),
        None if ratio is None else _with_percentiles(ratio, of_x / of_y),
    )


def permutation_p(x: np.ndarray, y: np.ndarray, seed: int = 0) -> float:
    """The two-sided p-value of a permutation test of the difference in means.

    It is twice the fraction of all divisions of the scores into two groups of these sizes whose
    means differ at least as much as observed, in the same direction. Above 200,000 divisions,
    20,000 random ones are drawn, and the observed one is counted as well.

    Args:
        x: scores of a method.
        y: scores of its baseline.
        seed: of the random divisions.

    Example:
        >>> permutation_p(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))  # 2 of 20
        0.1
    """
    x, y = _scores(x), _scores(y)
    size, scores = len(x), np.concatenate([x, y])
    divisions = math.comb(len(scores), size)
    if divisions <= _MOST_LISTED:
        members = itertools.chain.from_iterable(itertools.combinations(range(len(scores)), size))
        chosen = np.fromiter(members, int, divisions * size).reshape(divisions, size)
        sums = scores[chosen].sum(1)
    else:
        shuffled = np.random.default_rng(seed).permuted(np.tile(scores, (_DRAWN, 1)), axis=1)
        sums = np.append(shuffled[:, :size].sum(1), x.sum())
    differences = sums / size - (scores.sum() - sums) / len(y)
    return _two_sided_p(differences, x.mean() - y.mean())


def sign_flip_p(differences: np.ndarray, seed: int = 0) -> float:
    """The two-sided p-value of a sign-flip test of paired differences.

    If neither side is better, every difference could as well have the opposite sign. The p-value
    is twice the fraction of all combinations of signs whose mean is at least as far from zero as
    observed, in the same direction. Above 200,000 combinations, 20,000 random ones are drawn, and
    the observed one is counted as well.

    Args:
        differences: one number per independent pair, such as a seed.
        seed: of the random signs.

    Example:
        >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))  # 2 of 8
        0.25
    """
    differences = _scores(differences)
    count = len(differences)
    if 2**count <= _MOST_LISTED:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=count)))
    else:
        signs = np.random.default_rng(seed).choice([1.0, -1.0], size=(_DRAWN, count))
        signs = np.append(signs, np.ones((1, count)), axis=0)
    return _two_sided_p((signs * differences).mean(1), differences.mean())


def _two_sided_p(possible: np.ndarray, observed: float) -> float:
    margin = 1e-9 * np.abs(possible).max()  # equal sums may be rounded differently
    above = (possible >= observed - margin).mean()
    below = (possible <= observed + margin).mean()
    return min(1.0, 2 * float(min(above, below)))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's corrected p-values, in the order of the given ones.

    If those below a level are called significant, the probability of one or more mistakes among
    all tests is at most this level.

    Example:
        >>> holm([0.5, 0.25, 0.125]).tolist()
        [0.5, 0.5, 0.375]
    """
    p_values = np.asarray(p_values, float)
    if p_values.ndim != 1 or not ((p_values >= 0) & (p_values <= 1)).all():
        raise ValueError(f"p-values are numbers from 0 to 1, got {p_values.tolist()}.")
    order = np.argsort(p_values, kind="stable")
    remaining = np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(1, np.maximum.accumulate(remaining * p_values[order]))
    return corrected


def smallest_detectable_difference(
    x: np.ndarray, y: np.ndarray, power: float = 0.8, level: float = 0.05
) -> float:
    """The difference in means that samples of this size and spread detect with a given power.

    With the pooled standard deviation ``s`` of both samples and the quantiles of Student's t with
    ``n + m - 2`` degrees of freedom, it is ``(t(1 - level / 2) + t(power)) s √(1 / n + 1 / m)``.

    Args:
        x: scores of a method.
        y: scores of its baseline.
        power: the probability of detecting such a difference.
        level: of the two-sided test.

    Returns:
        the difference, or NaN if no sample has two scores, so that the spread is unknown.
    """
    x, y = _scores(x), _scores(y)
    freedom = len(x) + len(y) - 2
    if freedom < 1:
        return math.nan
    variance = (((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()) / freedom
    error = math.sqrt(variance * (1 / len(x) + 1 / len(y)))
    return (_student_quantile(1 - level / 2, freedom) + _student_quantile(power, freedom)) * error


def smallest_detectable_ratio(
    x: np.ndarray, y: np.ndarray, power: float = 0.8, level: float = 0.05
) -> float:
    """The ratio of scores that samples of this size and spread detect with a given power.

    This is :func:`smallest_detectable_difference` of the logarithms. A ratio of 1.5 means that
    neither 1.5 times the baseline nor the baseline divided by 1.5 is likely to be missed.

    Args:
        x: positive scores of a method.
        y: positive scores of its baseline.
        power: the probability of detecting such a ratio.
        level: of the two-sided test.

    Example:
        >>> six = np.exp(0.35 * np.array([-1, -1, -1, 1, 1, 1]) * np.sqrt(5 / 6))  # SD 0.35 of logs
        >>> round(smallest_detectable_ratio(six, six), 1)
        1.9
    """
    x, y = _scores(x), _scores(y)
    if min(x.min(), y.min()) <= 0:
        raise ValueError("A ratio needs positive scores: use smallest_detectable_difference.")
    return math.exp(smallest_detectable_difference(np.log(x), np.log(y), power, level))


def _student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution, by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"power and level must lie between 0 and 1, got {probability}.")
    if probability < 0.5:
        return -_student_quantile(1 - probability, freedom)
    # The quantile of one degree of freedom is the largest, that of infinitely many the smallest.
    low = NormalDist().inv_cdf(probability)
    high = math.tan(math.pi * (probability - 0.5)) + 1
    for _ in range(200):
        middle = (low + high) / 2
        if _student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """The distribution function for a whole number of degrees of freedom, a finite sum."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, total = math.cos(angle), 0.0
    term = cosine if freedom % 2 else 1.0
    for k in range(3 if freedom % 2 else 2, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    if freedom % 2:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2


def _scores(values: np.ndarray) -> np.ndarray:
    scores = np.asarray(values, float)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise ValueError(f"Scores are one or more finite numbers, got {scores.tolist()}.")
    return scores
