"""Estimates and tests for small samples, against enumeration, rliable and published examples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from vmfer_recipes.report.inference import (
    best_possible_p,
    estimate,
    interquartile_mean,
    paired_difference,
    permutation_p,
    probability_of_improvement,
    sign_flip_p,
    smallest_detectable_difference,
)

# Darwin's pairs of crossed and self-fertilized maize, in eighths of an inch, with which Fisher
# introduced the test (The Design of Experiments, 1935, section 21).
DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])


# Estimates.


def test_iqm_and_probability_agree_with_rliable():
    from rliable import metrics

    generator = np.random.default_rng(0)
    for size, other in ((2, 3), (5, 5), (7, 4), (16, 9)):
        # Rounded, so that there are ties.
        x, y = generator.normal(size=size).round(1), generator.normal(size=other).round(1)
        assert interquartile_mean(x) == pytest.approx(metrics.aggregate_iqm(x[:, None]))
        assert probability_of_improvement(x, y) == pytest.approx(
            metrics.probability_of_improvement(x[:, None], y[:, None])
        )


def test_the_bootstrap_interval_equals_that_of_all_resamples():
    """With three seeds, all 27 resamples can be listed, so the percentiles are known exactly."""
    scores = np.array([1.0, 2.0, 6.0])
    means = [np.mean(resample) for resample in itertools.product(scores, repeat=3)]
    low, high = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    # The lowest and highest mean have a probability of 1/27 > 2.5 % each.
    assert estimate(np.mean, scores) == pytest.approx((3, low, high)) == (3.0, 1.0, 6.0)


@pytest.mark.slow
def test_intervals_have_about_the_stated_coverage():
    """Percentile intervals of 5 normal seeds: about 84 %; of 30: about 93 %. Noise: ±4 %."""
    generator = np.random.default_rng(2)
    for seeds, expected in ((5, 0.84), (30, 0.935)):
        found = [estimate(np.mean, generator.normal(size=seeds)) for _ in range(300)]
        hits = np.mean([each.low <= 0 <= each.high for each in found])
        assert hits == pytest.approx(expected, abs=0.065)  # three standard errors


def test_estimates_are_reproducible_and_do_not_use_the_global_generator():
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = estimate(np.mean, np.arange(6.0))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    np.random.seed(8)  # noqa: NPY002
    assert estimate(np.mean, np.arange(6.0)) == first


def test_the_paired_interval_is_that_of_all_resampled_pairs():
    x, y = np.array([1.0, 5.0, 4.0]), np.array([1.0, 3.0, 8.0])
    resamples = [(x - y)[list(r)].mean() for r in itertools.product(range(3), repeat=3)]
    bounds = np.percentile(resamples, [2.5, 97.5], method="inverted_cdf")
    assert paired_difference(x, y, repetitions=50_000) == pytest.approx((-2 / 3, *bounds))


# Tests.


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (2, 5), (3, 3), (5, 4)])
def test_the_permutation_test_is_that_of_all_divisions(n, m):
    generator = np.random.default_rng(n)
    # Whole numbers, so that there are ties, and their sums are exact.
    scores = generator.integers(0, 5, n + m).astype(float)
    sums = np.array(
        [scores[list(group)].sum() for group in itertools.combinations(range(n + m), n)]
    )
    tails = (sums >= scores[:n].sum()).mean(), (sums <= scores[:n].sum()).mean()
    assert permutation_p(scores[:n], scores[n:]) == pytest.approx(min(1, 2 * min(tails)))


def test_the_sign_flip_test_gives_fishers_number_for_darwins_maize():
    assert sign_flip_p(DARWIN) == 2 * 863 / 2**15


def test_large_samples_are_tested_with_random_divisions_and_signs():
    generator = np.random.default_rng(1)
    x, y = generator.normal(0.6, 1, 40), generator.normal(0, 1, 30)
    assert permutation_p(x, y) == pytest.approx(stats.ttest_ind(x, y).pvalue, abs=0.005)
    assert permutation_p(x, y) == permutation_p(x, y)
    z = generator.normal(0.3, 1, 50)
    assert sign_flip_p(z) == pytest.approx(stats.ttest_1samp(z, 0).pvalue, abs=0.005)
    # Never zero, because the observed division is one of the possible ones.
    assert permutation_p(x + 100, y) == pytest.approx(2 / 20_001)


def test_equal_scores_are_no_evidence():
    assert permutation_p(np.ones(4), np.ones(4)) == 1
    assert sign_flip_p(np.zeros(5)) == sign_flip_p(np.ones(1)) == 1
    # Sums that are equal except for rounding count as equal.
    assert permutation_p(np.array([0.1, 0.2]), np.array([0.3, 0.0])) == 1


@pytest.mark.parametrize(("seeds", "others"), [(1, 1), (3, 3), (4, 4), (2, 9), (5, 3)])
def test_the_lowest_possible_p_value_is_that_of_the_rank_sum_test(seeds, others):
    separated = stats.mannwhitneyu(np.arange(seeds) + 100, np.arange(others), method="exact")
    assert best_possible_p((seeds, others)) == pytest.approx(separated.pvalue)
    # All 20 rankings of 3 + 3 seeds are equally likely on each of two tasks.
    assert best_possible_p((3, 3), (3, 3)) == pytest.approx(2 / 400)


# The smallest detectable effect.


def _with_sd(count: int, sd: float) -> np.ndarray:
    normal = stats.norm.ppf((np.arange(count) + 0.5) / count)
    return sd * normal / normal.std(ddof=1)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 6), (6, 6), (31, 30)])
@pytest.mark.parametrize("level", [0.05, 0.0125])
def test_the_t_test_detects_the_smallest_detectable_difference_with_its_power(n, m, level):
    """Against its exact power, from the non-central t distribution of SciPy."""
    difference = smallest_detectable_difference(_with_sd(n, 1.0), _with_sd(m, 1.0), level)
    freedom, shift = n + m - 2, difference / math.sqrt(1 / n + 1 / m)
    critical = stats.t.ppf(1 - level / 2, freedom)
    exact = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
    # The formula is an approximation, which is poor for two seeds only.
    assert exact == pytest.approx(0.8, abs=0.1 if freedom < 4 else 0.05)
