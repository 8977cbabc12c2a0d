"""From runs to results: what is compared with what, and the numbers, against references."""

from __future__ import annotations

import itertools
import math
import shutil

import numpy as np
import pytest
from scipy import stats

from helpers.report_runs import ReportRuns
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.report.inference import permutation_p, sign_flip_p
from vmfer_recipes.report.runs import read_runs


@pytest.fixture
def runs(tmp_path):
    return ReportRuns(tmp_path / "runs")


def _pairs(study):
    """Which method is compared with which, by their names."""
    labels = study.method_labels
    return {labels[c.method]: labels[c.baseline.method] for c in study.comparisons}


# Cells.


def test_unequal_numbers_of_seeds_and_grids(runs):
    runs.write("uniform", 0, interval=250)
    for seed in range(1, 5):
        runs.write("uniform", seed)
    runs.write_seeds("vmf_rank", [110] * 3)
    (comparison,) = runs.study().comparisons
    assert comparison.seeds == [(3, 5)]
    # Of the last tenth, there are evaluations at steps 900 and 1000.
    assert comparison.cell.final("return") == pytest.approx([(99 + 110) / 2] * 3)
    assert comparison.cell.scores == pytest.approx([55] * 3)
    curve = comparison.baseline.curves["return"]
    assert list(curve["step"]) == [0, 250, 500, 750, 1000]
    assert curve["mean"][0] == pytest.approx([0, 25, 50, 75, 100])


def test_unfinished_runs_count_only_for_a_curve_without_finished_ones(runs):
    runs.write("uniform", 0)
    stopped = runs.write("uniform", 1, 5000, stop=400)
    for seed, stop in enumerate((400, 700)):
        runs.write("fresh", seed, stop=stop)
    study = runs.study()
    uniform, fresh = study.cells
    assert [run.seed for run in uniform.runs] == [0]
    (left_out,) = study.left_out
    assert stopped.as_posix().endswith(left_out.path)
    assert "400 of 1,000" in left_out.reason
    assert not fresh.complete
    assert fresh.curves["return"]["step"][-1] == 400
    assert any("no run of TD3 · fresh is finished" in note for note in study.notes)


def test_a_seed_found_twice_counts_once(runs):
    shutil.copytree(runs.write(), runs.root / "copy")
    study = runs.study()
    assert [len(cell.runs) for cell in study.cells] == [1]
    assert "same settings and seed" in study.left_out[0].reason


def test_runs_count_up_to_the_chosen_step(runs):
    """The area below a line from 0 to 100 at step 1000 is 22.5 up to step 450."""
    runs.write("uniform", 0)
    runs.write("uniform", 1, 200, total=2000, interval=400)  # the same slope in a longer training
    runs.write("uniform", 2, stop=500)  # stopped after the chosen step
    early, short = runs.write("uniform", 3, stop=300), runs.write("uniform", 4, total=200)
    study = runs.study(until=450)
    (cell,) = study.cells
    assert [run.seed for run in cell.runs] == [0, 1, 2]
    assert cell.scores == pytest.approx([22.5] * 3)
    # The last tenth has only step 450, which lies between evaluations.
    assert cell.final("return") == pytest.approx([45] * 3)
    assert {path.split("/")[-1]: reason for path, reason in study.left_out} == {
        early.name: "evaluated only to step 300, before until=450",
        short.name: "its training ends at step 200, before until=450",
    }


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", b"a: [", "config.yaml cannot be read"),
        ("config.yaml", b"seed: x\ntotal_frames: 1\n", "config.yaml has"),
        ("eval.csv", b"", "eval.csv is empty"),
        ("eval.csv", b"step,return_mean\n", "not evaluated yet"),
        ("eval.csv", b"step,return_mean\n0,1,2\n", "eval.csv has 3 values in line 2, not 2"),
        ("eval.csv", b"step,return_mean\n0,=1+1\n", "eval.csv, line 2"),
        ("eval.csv", b"step,return_mean\n500,1.0\n1000,2.0\n", "do not increase from 0"),
        ("eval.csv", b"step,return_mean,success_rate\n0,nan,\n", "has no return at step 0"),
        ("eval.csv", b"step,return_mean\n0,\xff\xfe\n", "decode"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_damaged_files_are_skipped_and_listed(runs, name, content, reason):
    runs.write("uniform", 0)
    damaged = runs.write("uniform", 1)
    (damaged / name).write_bytes(content)
    found, (item,) = read_runs(runs.root)
    assert [run.seed for run in found] == [0]
    assert damaged.as_posix().endswith(item.path)
    assert reason in item.reason


# What is compared with what.


BASELINES = {
    # With the same replay.
    "fresh": {
        "TD3 · vmf_uncertainty": "TD3 · fresh",
        "TD3 · vmf_rank, critic_lr=0.001": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3+per · fresh",
    },
    # Across replays.
    "replay=uniform,sampler=fresh": {
        "TD3 · vmf_uncertainty": "TD3 · fresh",
        "TD3 · vmf_rank, critic_lr=0.001": "TD3 · fresh",
        "TD3+per · fresh": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3 · fresh",
    },
    # With the same sampler.
    "replay=uniform": {
        "TD3+per · fresh": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3 · vmf_uncertainty",
    },
}


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_baseline_has_the_named_settings_and_the_others_of_the_method(baseline, runs):
    """The arms of results/hopper_200k/PROTOCOL.md, and one with another learning rate."""
    for sampler in ("fresh", "vmf_uncertainty", "vmf_rank"):
        runs.write(sampler)
    for sampler in ("fresh", "vmf_uncertainty"):
        runs.write(sampler, replay="per")
    runs.write("vmf_rank", critic_lr=0.5)
    study = runs.study(baseline)
    assert _pairs(study) == BASELINES[baseline]
    if "fresh" in baseline:
        assert any("critic_lr=0.5 has no comparison" in note for note in study.notes)
    # The paper's numbers appear only beside its own baseline.
    assert {average.paper for average in study.averages} == {None}


def test_any_key_may_name_the_baseline(runs):
    runs.write("fresh", algorithm="sac", actor_objective="first")  # no other algorithm has it
    for objective, sampler in itertools.product(("first", "mean"), ("fresh", "vmf_rank")):
        runs.write(sampler, actor_objective=objective)
    assert _pairs(runs.study("actor_objective=first")) == {
        "TD3 · fresh, actor_objective=mean": "TD3 · fresh, actor_objective=first",
        "TD3 · vmf_rank, actor_objective=mean": "TD3 · vmf_rank, actor_objective=first",
    }
    baselines_of_all = _pairs(runs.study("actor_objective=first,sampler=fresh"))
    assert len(baselines_of_all) == 3
    assert {*baselines_of_all.values()} == {"TD3 · fresh, actor_objective=first"}


@pytest.mark.parametrize("written", ["sampler.power=1", "sampler.power=1.0", "sampler.power= 1e0"])
def test_doses_of_one_sampler_are_compared_with_one_of_them(runs, written):
    for power in (8.0, -4.0, 1.0):
        runs.write("vmf_power", **{"sampler.power": power})
    study = runs.study(written)
    assert _pairs(study) == {
        "TD3 · vmf_power, power=-4": "TD3 · vmf_power, power=1",
        "TD3 · vmf_power, power=8": "TD3 · vmf_power, power=1",
    }
    order = [study.method_labels[cell.method][-2:] for cell in study.cells]
    assert order == ["=1", "-4", "=8"]  # the baseline, then by size


def test_every_listed_setting_can_be_the_baseline(runs):
    for value in (True, None, 0.5, [16, 16]):
        runs.write("fresh", odd=value)
    with pytest.raises(UserError, match=r"odd=null; .*odd=true") as caught:
        runs.study("frehs")
    for listed in str(caught.value).partition("there are ")[2].rstrip(".").split("; "):
        runs.study(listed)


def test_different_hyperparameters_are_different_methods_with_different_labels(runs):
    for critics in (2, 5):
        runs.write("vmf_rank", num_critics=critics)
    for ratio in (1, 3):
        runs.write("uniform", utd_ratio=ratio)
    runs.write("vmf_uncertainty", utd_ratio=5)
    study = runs.study()
    assert {*study.method_labels.values()} == {
        "TD3 · vmf_rank, num_critics=2",
        "TD3 · vmf_rank, num_critics=5",
        "TD3 · uniform, utd_ratio=1",
        "TD3 · uniform, utd_ratio=3",
        "TD3 · vmf_uncertainty",
    }
    # Five critics are compared with the two of the baseline, and five updates with nothing.
    assert sorted(comparison.note for comparison in study.comparisons) == ["", "num_critics=2"]
    assert any("vmf_uncertainty has no comparison" in note for note in study.notes)


@pytest.mark.parametrize(
    ("critics", "baseline", "comparable"),
    [
        ((2, 5), {}, True),
        ((1, 2), {}, False),  # without the minimum of two critics
        ((2, 1), {}, False),
        ((2, 5), {"algorithm": "crossq"}, True),
        ((2, 5), {"algorithm": "redq"}, False),
        ((2, 5), {"algorithm": "my_redq"}, False),
        ((2, 5), {"replay": "per"}, False),  # all critics have TD errors
    ],
)
def test_more_critics_are_compared_only_if_the_baseline_does_not_use_them(
    critics, baseline, comparable, runs
):
    runs.write("fresh", num_critics=critics[0], **baseline)
    runs.write("vmf_rank", num_critics=critics[1], **baseline)
    assert bool(_pairs(runs.study("fresh"))) == comparable


def test_versions_and_lengths_are_never_mixed_and_missing_cells_are_listed(runs):
    for env, total in (("Hopper-v4", 1000), ("Hopper-v5", 1000), ("Hopper-v4", 2000)):
        for sampler in ("uniform", "vmf_rank"):
            runs.write(sampler, env=env, total=total)
    runs.write("uniform", env="Ant-v4")
    study = runs.study()
    assert len(study.comparisons) == len(study.averages) == 3
    assert all(each.cell.task == each.baseline.task for each in study.comparisons)
    assert any("vmf_rank has no run on Ant-v4" in note for note in study.notes)


# Numbers.


def test_improvement_is_a_mean_of_ratios_over_tasks(runs):
    for env, base, gain in (("Hopper-v4", 100, 1.2), ("Ant-v4", 1000, 1.0)):
        runs.write_seeds("uniform", [base] * 4, env=env)
        runs.write_seeds("vmf_rank", [base * gain] * 4, env=env)
    study = runs.study()
    (average,) = study.averages
    assert average.improvement.value == pytest.approx(110)
    assert average.probability.value == pytest.approx(0.75)  # 1 on Hopper, ties on Ant
    assert average.paper == 111.62
    verdicts = {c.cell.task.environment: c.verdict for c in study.comparisons}
    assert verdicts == {"Hopper-v4": "above the baseline", "Ant-v4": "undecided"}


@pytest.mark.parametrize(
    "key_and_value",
    [("num_critics", 5), ("sampler.share", 0.5), ("env.kwargs.ctrl_cost_weight", 0.0)],
    ids=lambda pair: pair[0],
)
def test_other_settings_than_the_papers_have_no_number_of_the_paper(key_and_value, runs):
    for sampler in ("uniform", "vmf_rank"):
        runs.write(sampler, **dict([key_and_value]))
    (average,) = runs.study().averages
    assert average.paper is None


def test_success_rate_is_the_score_where_there_is_one(runs):
    for sampler, rate in (("uniform", 0.5), ("vmf_ema", 1.0)):
        runs.write(sampler, 0, -50, success=rate, replay="her", env="FetchPush-v4")
    (comparison,) = runs.study().comparisons
    assert comparison.cell.score_name == "success_rate"
    assert comparison.improvement.value == pytest.approx(200)


def test_comparisons_have_the_numbers_of_their_scores(runs):
    generator = np.random.default_rng(0)
    ends = {name: 100 * np.exp(generator.normal(0, 0.4, 6)) for name in ("fresh", "a", "b")}
    ends["b"] *= 4
    for name, values in ends.items():
        runs.write_seeds(name, values)
    by_name = {c.method.sampler: c for c in runs.study("fresh").comparisons}
    raw = {}
    for name, comparison in by_name.items():
        difference = (ends[name] - ends["fresh"]) / 2  # the area below a line to its end
        assert comparison.paired.value == pytest.approx(difference.mean())
        assert comparison.paired_p == sign_flip_p(difference)
        ratio = ends[name].mean() / ends["fresh"].mean()
        assert comparison.improvement.value == pytest.approx(100 * ratio)
        raw[name] = permutation_p(np.log(ends[name]), np.log(ends["fresh"]))
        assert comparison.p_value == pytest.approx(raw[name])
    assert raw["b"] < raw["a"]
    assert by_name["b"].corrected_p == pytest.approx(2 * raw["b"])
    assert by_name["a"].corrected_p == pytest.approx(max(raw["a"], 2 * raw["b"]))
    assert by_name["b"].verdict == "above the baseline"
    assert by_name["a"].verdict == "undecided"


def test_the_verdict_is_corrected_for_the_comparisons_of_a_task(runs):
    """Four seeds that beat all four of the baseline: p = 2/70, enough alone but not twice."""
    runs.write_seeds("uniform", [100, 101, 102, 103])
    runs.write_seeds("vmf_rank", [50, 51, 52, 53])
    (alone,) = runs.study().comparisons
    assert alone.corrected_p == pytest.approx(2 / 70)
    assert alone.verdict == "below the baseline"
    runs.write_seeds("recent", [100, 101, 102, 103])
    assert {c.verdict for c in runs.study().comparisons} == {"too few seeds"}


def test_only_seeds_that_both_have_are_paired(runs):
    runs.write_seeds("uniform", [100, 200, 300, 400])
    for seed in (2, 3, 4):
        runs.write("vmf_rank", seed, 100 * (seed + 1) + 20)
    runs.write("recent", 9)
    by_name = {c.method.sampler: c for c in runs.study().comparisons}
    assert by_name["vmf_rank"].pairs == 2
    assert by_name["vmf_rank"].paired == pytest.approx((10, 10, 10))
    assert (by_name["recent"].pairs, by_name["recent"].paired) == (0, None)


def test_scores_that_are_not_positive_are_compared_by_differences(runs):
    runs.write_seeds("uniform", [-100, -101, -102, -103, -104])
    runs.write_seeds("vmf_rank", [-10, -11, -12, -13, -14])
    study = runs.study()
    (comparison,) = study.comparisons
    assert (comparison.is_ratio, comparison.improvement, study.averages) == (False, None, [])
    assert any("a percentage of it is meaningless" in note for note in study.notes)
    # Both have the variance 2.5 / 4: the area below a line is half its end.
    quantiles = stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8)
    assert comparison.detectable == pytest.approx(quantiles * math.sqrt(2.5 / 4 * 2 / 5))
    assert comparison.verdict == "above the baseline"
