"""Tests and intervals for small samples, against SciPy, enumeration and published examples."""

from __future__ import annotations

import doctest
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from vmfer_recipes.reporting import estimate, inference
from vmfer_recipes.reporting.inference import (
    hierarchical_bootstrap,
    holm,
    paired_bootstrap,
    permutation_p,
    sign_flip_p,
    smallest_detectable_difference,
    smallest_detectable_ratio,
)

# Darwin's pairs of crossed and self-fertilized maize, in eighths of an inch, with which Fisher
# introduced the test (The Design of Experiments, 1935, section 21).
DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])


@pytest.mark.parametrize("module", [estimate, inference], ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(module).failed == 0


def test_no_package_of_the_report_is_needed():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('rliable', 'pandas', 'scipy', 'torch')));"
        "import vmfer_recipes.reporting.inference, vmfer_recipes.reporting.document"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Nested values.


def test_every_seed_and_every_checkpoint_has_the_same_weight():
    values = [[[1.0, 2.0, 3.0], [10.0]], [[0.0]], [[5.0, 7.0], [1.0], [3.0, 3.0, 3.0]]]
    # Checkpoints: 2 and 10, 0, and 6, 1, 3. Seeds: 6, 0, 10/3.
    assert hierarchical_bootstrap(values).value == pytest.approx((6 + 0 + 10 / 3) / 3)


def test_the_hierarchical_interval_is_that_of_a_plain_loop():
    generator = np.random.default_rng(0)
    sizes = ((2, 5, 3), (4,), (3, 1), (2, 2, 2, 6))
    values = [
        [generator.normal(3 * i, 1 + j, n) for j, n in enumerate(draws)]
        for i, draws in enumerate(sizes)
    ]
    found = hierarchical_bootstrap(values)

    def loop():
        of_seeds = []
        for _ in values:
            seed = values[generator.integers(len(values))]
            of_checkpoints = []
            for _ in seed:
                draws = seed[generator.integers(len(seed))]
                of_checkpoints.append(generator.choice(draws, len(draws)).mean())
            of_seeds.append(np.mean(of_checkpoints))
        return np.mean(of_seeds)

    low, high = np.percentile([loop() for _ in range(1000)], [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.35)


def test_a_single_level_is_the_usual_bootstrap():
    scores = np.array([1.0, 2.0, 6.0])
    means = [np.mean(resample) for resample in itertools.product(scores, repeat=3)]
    low, high = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    assert hierarchical_bootstrap(scores)[1:] == (low, high)
    assert hierarchical_bootstrap([[[v]] for v in scores]) == pytest.approx((3.0, low, high))


def test_other_statistics_are_applied_at_each_level():
    values = [[[1.0, 2.0, 30.0]], [[4.0]], [[9.0]]]
    assert hierarchical_bootstrap(values, statistic=np.median).value == 4


def test_one_seed_has_no_interval_however_many_draws_it_has():
    found = hierarchical_bootstrap([[np.arange(50.0)]])
    assert found.value == 24.5
    assert math.isnan(found.low)


def test_intervals_are_reproducible():
    values = [[[1.0, 2.0]], [[4.0, 5.0]], [[9.0]]]
    assert hierarchical_bootstrap(values) == hierarchical_bootstrap(values)
    assert paired_bootstrap(np.arange(5), np.ones(5)) == paired_bootstrap(np.arange(5), np.ones(5))


@pytest.mark.parametrize("values", [[], [[]], [[[1.0], []]], [[[1.0, math.nan]]]])
def test_missing_values_are_an_error(values):
    with pytest.raises(ValueError, match="leave out"):
        hierarchical_bootstrap(values)


# Paired scores.


def test_paired_intervals_are_those_of_all_resampled_pairs():
    x, y = np.array([1.0, 5.0, 4.0]), np.array([1.0, 3.0, 8.0])
    pairs = [np.array(r) for r in itertools.product(range(3), repeat=3)]
    difference, ratio = paired_bootstrap(x, y, repetitions=50_000)
    for found, resamples in (
        (difference, [x[r].mean() - y[r].mean() for r in pairs]),
        (ratio, [x[r].mean() / y[r].mean() for r in pairs]),
    ):
        bounds = np.percentile(resamples, [2.5, 97.5], method="inverted_cdf")
        assert found[1:] == pytest.approx(tuple(bounds))
    assert (difference.value, ratio.value) == pytest.approx((-2 / 3, 10 / 12))


def test_a_ratio_to_scores_of_zero_or_less_has_no_meaning():
    assert paired_bootstrap(np.ones(3), np.array([1.0, 0.0, 2.0])).ratio is None
    single = paired_bootstrap(np.ones(1), np.ones(1))
    assert math.isnan(single.difference.low)
    assert math.isnan(single.ratio.high)
    with pytest.raises(ValueError, match="2 and 3"):
        paired_bootstrap(np.ones(2), np.ones(3))


# Permutation tests.


@pytest.mark.parametrize(("n", "m"), [(2, 5), (3, 3), (6, 6), (7, 4)])
def test_the_permutation_test_agrees_with_scipy(n, m):
    generator = np.random.default_rng(n)
    # Rounded, so that there are ties.
    x, y = generator.normal(0.5, 1, n).round(1), generator.normal(0, 1, m).round(1)
    result = stats.permutation_test((x, y), lambda a, b: a.mean() - b.mean(), n_resamples=np.inf)
    assert permutation_p(x, y) == pytest.approx(result.pvalue)


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
    assert permutation_p(np.array([2.0]), np.array([1.0])) == 1
    assert sign_flip_p(np.zeros(5)) == 1
    # Sums that are equal except for rounding count as equal.
    assert permutation_p(np.array([0.1, 0.2]), np.array([0.3, 0.0])) == 1


@pytest.mark.parametrize("bad", [[], [math.nan, 1.0], [[1.0]]])
def test_what_are_not_scores_is_an_error(bad):
    for function in (permutation_p, paired_bootstrap, smallest_detectable_ratio):
        with pytest.raises(ValueError, match="finite numbers"):
            function(np.array(bad), np.ones(2))


# Several comparisons.


def test_holms_correction_of_published_examples():
    """Four tests of Wikipedia's article on the method, and five of R's manual of p.adjust."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.7]) == pytest.approx([0.7])
    assert len(holm([])) == 0


@pytest.mark.slow
def test_holms_correction_agrees_with_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    generator = np.random.default_rng(2)
    for count in (2, 5, 12):
        p_values = generator.uniform(0, 0.3, count).round(2)
        expected = multitest.multipletests(p_values, method="holm")[1]
        assert holm(p_values) == pytest.approx(expected)


@pytest.mark.parametrize("p_value", [-0.1, 1.1, math.nan])
def test_what_is_not_a_probability_is_an_error(p_value):
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm([0.5, p_value])


# The smallest detectable effect.


def _with_sd(count: int, sd: float) -> np.ndarray:
    normal = stats.norm.ppf((np.arange(count) + 0.5) / count)
    return sd * normal / normal.std(ddof=1)


def test_the_smallest_detectable_ratio_of_the_hopper_protocol():
    """results/hopper_200k/PROTOCOL.md: SD of log AUC 0.35, six seeds against six."""
    scores = np.exp(_with_sd(6, 0.35))
    assert round(smallest_detectable_ratio(100 * scores, scores), 1) == 1.9
    assert round(smallest_detectable_ratio(scores, scores, level=0.0125), 1) == 2.2


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 3), (3, 6), (6, 6), (10, 5), (31, 30)])
@pytest.mark.parametrize("level", [0.05, 0.0125])
def test_the_t_test_detects_the_smallest_detectable_difference_with_its_power(n, m, level):
    """Against its exact power, from the non-central t distribution of SciPy."""
    difference = smallest_detectable_difference(_with_sd(n, 1.0), _with_sd(m, 1.0), level=level)
    freedom, shift = n + m - 2, difference / math.sqrt(1 / n + 1 / m)
    critical = stats.t.ppf(1 - level / 2, freedom)
    exact = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
    # The formula is an approximation, which is poor for two seeds only.
    assert exact == pytest.approx(0.8, abs=0.1 if freedom < 4 else 0.05)


def test_the_permutation_test_of_logarithms_detects_the_smallest_detectable_ratio():
    """Simulated with six seeds: the power is 80 %; the standard error of 1,000 studies is 1.3 %."""
    generator = np.random.default_rng(3)
    ratio = smallest_detectable_ratio(*[np.exp(_with_sd(6, 0.35))] * 2)
    logs = generator.normal(0, 0.35, (2, 1000, 6))
    detected = [permutation_p(x + math.log(ratio), y) < 0.05 for x, y in zip(*logs, strict=True)]
    assert np.mean(detected) == pytest.approx(0.8, abs=0.04)


def test_an_unknown_spread_leaves_the_smallest_effect_unknown():
    assert math.isnan(smallest_detectable_ratio(np.array([2.0]), np.array([3.0])))
    # One sample with a spread is enough.
    assert smallest_detectable_ratio(np.array([2.0]), np.array([3.0, 4.0])) > 1
    with pytest.raises(ValueError, match="positive"):
        smallest_detectable_ratio(np.array([2.0, 0.0]), np.array([3.0, 1.0]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        smallest_detectable_difference(np.arange(3), np.arange(3), power=1)
