"""The comparison of forks: paired differences, what intervals and p-values cover, and doses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vmfer_recipes.config.training import to_config
from vmfer_recipes.fork.arms import make_arms
from vmfer_recipes.fork.report import (
    COLUMNS,
    compare,
    dose_figure,
    forest_figure,
    hierarchical_interval,
)

ARMS = ["fresh", "rank", "power"]


def results(arm="rank", *differences):
    """Results of an arm with given differences from ``fresh``, by seed, checkpoint and draw."""
    found = []
    for seed, steps in enumerate(differences):
        for step, draws in enumerate(steps):
            for draw, difference in enumerate(draws):
                common = 100.0 * seed + 10 * step + draw  # what arms share cancels out
                found.append(("run", seed, step, "fresh", draw, 0.0, common))
                found.append(("run", seed, step, arm, draw, 0.0, common + difference))
    return pd.DataFrame(found, columns=COLUMNS)


def compared(differences):
    (found,) = compare(results("rank", *differences), ARMS)
    return found


def test_every_seed_has_the_same_weight_in_the_difference():
    found = compared([[[1, 3], [4]], [[9]]])
    assert found.difference.value == np.mean([np.mean([2, 4]), 9])
    assert (found.pairs, found.wins) == (4, 1.0)
    assert found.covers == {"seed": 2, "checkpoint": 2, "draw": 2}
    assert found.difference.low <= 6 <= found.difference.high


def test_the_interval_is_that_of_a_plain_loop_over_seeds_checkpoints_and_draws():
    generator = np.random.default_rng(0)
    sizes = ((2, 5, 3), (4,), (3, 1), (2, 2, 2, 6))
    values = [
        [generator.normal(3 * i, 1 + j, n) for j, n in enumerate(draws)]
        for i, draws in enumerate(sizes)
    ]
    places = {
        (i, j, k): value
        for i, seed in enumerate(values)
        for j, draws in enumerate(seed)
        for k, value in enumerate(draws)
    }

    def resample():
        of_seeds = []
        for _ in values:
            seed = values[generator.integers(len(values))]
            of_checkpoints = []
            for _ in seed:
                draws = seed[generator.integers(len(seed))]
                of_checkpoints.append(generator.choice(draws, len(draws)).mean())
            of_seeds.append(np.mean(of_checkpoints))
        return np.mean(of_seeds)

    expected = np.percentile([resample() for _ in range(1000)], [2.5, 97.5])
    found = hierarchical_interval(pd.Series(places).rename_axis(["seed", "at", "draw"]))
    assert found == pytest.approx(expected, abs=0.35)


def test_with_one_seed_the_interval_covers_what_is_below():
    assert compared([[[1, 3], [4, 4]]]).covers == {"checkpoint": 2, "draw": 2}
    found = compared([[[1, 3, 5]]])
    assert found.covers == {"draw": 3}
    assert (found.difference.low, found.difference.high) == pytest.approx((1, 5), abs=0.5)
    found = compared([[[1]]])
    assert found.covers == {}
    assert np.isnan(found.difference.low)


@pytest.mark.parametrize(
    ("differences", "units", "count", "p"),
    [
        ([[[2, 4]]] * 6, "seed", 6, 2 / 2**6),
        ([[[2, 4]] * 2] * 3, "checkpoint", 6, 2 / 2**6),
        ([[[2, 4, 1, 2]] * 2], "draw", 8, 2 / 2**8),
        ([[[2, 4]]], "draw", 2, 2 / 2**2),
    ],
)
def test_the_test_flips_the_highest_level_with_enough_units(differences, units, count, p):
    found = compared(differences)
    assert (found.units, found.unit_count) == (units, count)
    assert found.p == found.corrected_p == p


@pytest.fixture
def two_arms():
    power = results("power", [[1, -1, 1, -1, 1, -1]])
    return compare(pd.concat([results("rank", [[1] * 6]), power]).drop_duplicates(), ARMS)


def test_p_values_are_corrected_over_the_arms(two_arms):
    rank, power = two_arms
    assert (rank.p, rank.corrected_p) == (2 / 2**6, 4 / 2**6)
    assert power.p == power.corrected_p == 1
    assert power.wins == 0.5


def test_pairs_with_an_unfinished_fork_are_left_out():
    found = results("rank", [[1, 5]]).drop(2)  # the second draw of the reference
    (comparison,) = compare(found, ARMS)
    assert (comparison.arm, comparison.difference.value, comparison.pairs) == ("rank", 1.0, 1)
    assert compare(found[1:2], ARMS) == []


def test_the_dose_of_an_arm_is_its_power_if_nothing_else_differs(configuration, tmp_path):
    cfg = to_config(configuration("td3", tmp_path, "sampler=fresh"))
    doses = {
        "fresh": 0.0,
        "vmf_uncertainty": 1.0,
        "vmf_power sampler.power=8": 8.0,
        "anti_vmf": -4.0,
        "gradient_norm": None,
        "vmf_power sampler.share=0.5": None,
        "fresh actor_objective=mean": None,
    }
    assert {arm.name: arm.dose for arm in make_arms(list(doses), cfg)} == doses


def test_a_run_that_ended_before_some_of_the_checkpoints_to_keep_can_be_forked(configuration):
    cfg = to_config(configuration("td3", "run"))
    cfg.keep_checkpoints_at = [cfg.total_frames + 1]
    (first, _) = make_arms(["fresh", "vmf_rank"], cfg)
    assert first.apply(cfg).keep_checkpoints_at == []


def test_pictures_show_every_arm(two_arms):
    (axes,) = forest_figure(two_arms, "fresh").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank", "power"]
    (axes,) = dose_figure(two_arms, "fresh", {"fresh": 0, "power": 8.0}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "8"]
