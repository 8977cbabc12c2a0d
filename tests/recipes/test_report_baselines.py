"""The report compares any two settings, up to any step."""

from __future__ import annotations

import functools
import itertools
import math
import sys

import numpy as np
import pytest
from scipy import stats

from helpers.report_runs import write_report_run
from vmfer_recipes.report import command, inference
from vmfer_recipes.report.baselines import Baseline
from vmfer_recipes.report.runs import read_runs
from vmfer_recipes.report.study import make_study


@pytest.fixture
def write_run(tmp_path):
    return functools.partial(write_report_run, tmp_path / "runs")


@pytest.fixture
def study_of(tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "REPETITIONS", 50)

    def read(baseline="uniform", until=None):
        return make_study(*read_runs(tmp_path / "runs", until), Baseline(baseline))

    return read


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """Calls the program and returns its exit code, its output and its error message."""
    monkeypatch.setattr(inference, "REPETITIONS", 50)

    def call(*arguments):
        out = f"out={tmp_path / 'report'}"
        monkeypatch.setattr(sys, "argv", ["report.py", str(tmp_path / "runs"), out, *arguments])
        try:
            command.main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


def _pairs(study):
    """Which method is compared with which, by their names."""
    labels = study.method_labels
    return {labels[c.cell.method]: labels[c.baseline.method] for c in study.comparisons}


# What is compared with what.


@pytest.fixture
def hopper_arms(write_run):
    """The arms of results/hopper_200k/PROTOCOL.md, and one with another learning rate."""
    for replay, sampler in (
        ("uniform", "fresh"),
        ("uniform", "vmf_uncertainty"),
        ("uniform", "vmf_rank"),
        ("per", "fresh"),
        ("per", "vmf_uncertainty"),
    ):
        write_run(sampler, replay=replay)
    write_run("vmf_rank", critic_lr=0.5)


def test_another_sampler_is_the_baseline_of_methods_with_the_same_replay(hopper_arms, study_of):
    study = study_of("fresh")
    assert _pairs(study) == {
        "TD3 · vmf_uncertainty": "TD3 · fresh",
        "TD3 · vmf_rank, critic_lr=0.001": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3+per · fresh",
    }
    assert any("critic_lr=0.5 has no comparison" in note for note in study.notes)
    # The paper's numbers appear only beside its own baseline.
    assert [average.paper for average in study.averages] == [None] * 3


def test_naming_the_replay_compares_across_replays(hopper_arms, study_of):
    assert _pairs(study_of("replay=uniform,sampler=fresh")) == {
        "TD3 · vmf_uncertainty": "TD3 · fresh",
        "TD3 · vmf_rank, critic_lr=0.001": "TD3 · fresh",
        "TD3+per · fresh": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3 · fresh",
    }
    # With the replay alone, samplers are held equal.
    assert _pairs(study_of("replay=uniform")) == {
        "TD3+per · fresh": "TD3 · fresh",
        "TD3+per · vmf_uncertainty": "TD3 · vmf_uncertainty",
    }


def test_any_key_may_name_the_baseline(write_run, study_of):
    write_run("fresh", algorithm="sac", actor_objective="first")  # of no other algorithm
    for objective in ("first", "mean"):
        for sampler in ("fresh", "vmf_rank"):
            write_run(sampler, actor_objective=objective)
    assert _pairs(study_of("actor_objective=first")) == {
        "TD3 · fresh, actor_objective=mean": "TD3 · fresh, actor_objective=first",
        "TD3 · vmf_rank, actor_objective=mean": "TD3 · vmf_rank, actor_objective=first",
    }
    baselines_of_all = _pairs(study_of("actor_objective=first,sampler=fresh"))
    assert len(baselines_of_all) == 3
    assert {*baselines_of_all.values()} == {"TD3 · fresh, actor_objective=first"}


@pytest.mark.parametrize("written", ["sampler.power=1", "sampler.power=1.0", "sampler.power= 1e0"])
def test_doses_of_one_sampler_are_compared_with_one_of_them(write_run, study_of, written):
    for power in (-4.0, 1.0, 8.0):
        write_run("vmf_power", **{"sampler.power": power})
    write_run("fresh")
    study = study_of(written)
    assert _pairs(study) == {
        "TD3 · vmf_power, power=-4.0": "TD3 · vmf_power, power=1.0",
        "TD3 · vmf_power, power=8.0": "TD3 · vmf_power, power=1.0",
        "TD3 · fresh": "TD3 · vmf_power, power=1.0",
    }
    order = [study.method_labels[c.method] for c in study.cells_of(study.tasks[0])]
    assert order[0] == "TD3 · vmf_power, power=1.0"
    assert order.index("TD3 · vmf_power, power=-4.0") < order.index("TD3 · vmf_power, power=8.0")


# Numbers.


def test_comparisons_against_numpy_and_scipy(write_run, study_of):
    generator = np.random.default_rng(0)
    ends = {name: 100 * np.exp(generator.normal(0, 0.4, 6)) for name in ("fresh", "a", "b")}
    ends["b"] *= 4
    for name, values in ends.items():
        for seed, end in enumerate(values):
            write_run(name, seed, float(end))
    study = study_of("fresh")
    logs = {name: np.log(values) for name, values in ends.items()}
    raw = {}
    for comparison in study.comparisons:
        name = comparison.cell.method.sampler
        difference = (ends[name] - ends["fresh"]) / 2  # the area below a line to its end
        assert comparison.paired.value == pytest.approx(difference.mean())
        flips = np.abs(np.array(list(itertools.product((1, -1), repeat=6))) @ difference)
        assert comparison.paired_p == (flips >= abs(difference.sum()) - 1e-9).mean()
        ratio = ends[name].mean() / ends["fresh"].mean()
        assert comparison.improvement.value == pytest.approx(100 * ratio)
        both = np.append(logs[name], logs["fresh"])
        sums = np.array([both[list(group)].sum() for group in itertools.combinations(range(12), 6)])
        raw[name] = 2 * (np.sign(sums.mean() - sums[0]) * (sums[0] - sums) >= -1e-9).mean()
        assert comparison.p_value == pytest.approx(raw[name])
        # Two comparisons: Holm's first threshold is 0.025.
        quantiles = stats.t.ppf(1 - 0.0125, 10) + stats.t.ppf(0.8, 10)
        pooled = math.sqrt((logs[name].var(ddof=1) + logs["fresh"].var(ddof=1)) / 2)
        expected = math.exp(quantiles * pooled * math.sqrt(2 / 6))
        assert comparison.detectable == pytest.approx(expected)
    by_name = {c.cell.method.sampler: c for c in study.comparisons}
    assert raw["b"] < raw["a"]
    assert by_name["b"].corrected_p == pytest.approx(2 * raw["b"])
    assert by_name["a"].corrected_p == pytest.approx(max(raw["a"], 2 * raw["b"]))
    assert by_name["b"].verdict == "above the baseline"
    assert by_name["a"].verdict == "undecided"


def test_the_verdict_is_corrected_for_the_comparisons_of_a_task(write_run, study_of):
    """Four seeds that beat all four of the baseline: p = 2/70, enough alone but not twice."""
    for seed in range(4):
        write_run("uniform", seed, 100 + seed)
        write_run("vmf_rank", seed, 50 + seed)
    (alone,) = study_of().comparisons
    assert alone.corrected_p == pytest.approx(2 / 70)
    assert alone.verdict == "below the baseline"
    for seed in range(4):
        write_run("recent", seed, 100 + seed)
    assert {c.verdict for c in study_of().comparisons} == {"too few seeds"}


def test_only_seeds_that_both_have_are_paired(write_run, study_of):
    for seed in (0, 1, 2, 3):
        write_run("uniform", seed, 100 * (seed + 1))
    for seed in (2, 3, 4):
        write_run("vmf_rank", seed, 100 * (seed + 1) + 20)
    write_run("recent", 9, 100)
    by_name = {c.cell.method.sampler: c for c in study_of().comparisons}
    assert by_name["vmf_rank"].pairs == 2
    assert by_name["vmf_rank"].paired == pytest.approx((10, 10, 10))
    assert (by_name["recent"].pairs, by_name["recent"].paired) == (0, None)


def test_scores_that_are_not_positive_are_compared_by_differences(write_run, study_of, report):
    for seed in range(5):
        write_run("uniform", seed, -100 - seed)
        write_run("vmf_rank", seed, -10 - seed)
    study = study_of()
    (comparison,) = study.comparisons
    assert (comparison.is_ratio, comparison.improvement, study.averages) == (False, None, [])
    assert any("a percentage of it is meaningless" in note for note in study.notes)
    # Both have the variance 2.5 / 4: the area below a line is half its end.
    quantiles = stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8)
    assert comparison.detectable == pytest.approx(quantiles * math.sqrt(2.5 / 4 * 2 / 5))
    assert comparison.verdict == "above the baseline"
    code, output, _ = report()
    assert code == 0
    assert "These seeds could have detected a difference of 1.6 or more." in output


def test_one_seed_gives_a_report_without_intervals_and_effects(write_run, report, tmp_path):
    write_run("uniform")
    write_run("vmf_rank")
    code, output, _ = report()
    assert code == 0
    assert "The smallest detectable effect is unknown" in output
    tests, comparisons = (
        (tmp_path / "report" / "tables" / f"{name}.csv").read_text().splitlines()[1]
        for name in ("tests", "comparisons")
    )
    assert tests.endswith(",1.0,1.0,1.0,,ratio,too few seeds")
    assert ",0.0,,,1.0,AUC of the return," in comparisons  # no interval of the paired difference


# Up to a step.


def test_runs_count_up_to_the_chosen_step(write_run, study_of):
    """The area below a line from 0 to 100 at step 1000 is 22.5 up to step 450."""
    write_run("uniform", 0, 100)
    write_run("uniform", 1, 200, total=2000, interval=400)  # the same slope in a longer training
    write_run("uniform", 2, 100, stop=500)  # stopped after the chosen step
    early = write_run("uniform", 3, 100, stop=300)
    short = write_run("uniform", 4, 100, total=200)
    study = study_of(until=450)
    (cell,) = study.cells.values()
    assert [run.seed for run in cell.runs] == [0, 1, 2]
    assert cell.area["return"] == pytest.approx([22.5] * 3)
    # The last tenth has only step 450, which lies between evaluations.
    assert cell.final["return"] == pytest.approx([45] * 3)
    reasons = {item.path: item.reason for item in study.left_out}
    assert {path.split("/")[-1] for path in reasons} == {early.name, short.name}
    assert sorted(reasons.values()) == [
        "evaluated only to step 300, before until=450",
        "its training ends at step 200, before until=450",
    ]


# Bad input.


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("baseline=frehs", "replay=uniform,sampler=vmf_power,sampler.power=8.0."),
        ("baseline=vmf_power", ": sampler=vmf_power,sampler.power=1.0; sampler=vmf_power,"),
        ("baseline=replay=per,sampler=vmf_power", "No run matches baseline=replay=per,"),
        ("baseline=actor_objektive=mean", "No run has the key actor_objektive of baseline="),
        ("baseline=sampler=", "baseline=sampler= cannot be parsed: write the name of a sampler"),
        ("baseline==fresh", "cannot be parsed"),
        ("baseline=", "baseline must be a non-empty string"),
        ("until=2000", "was evaluated to until=2000: the longest reaches step 1000."),
        ("until=0", "until must be a whole number from 1 to"),
        ("colour=red", "colour"),
    ],
)
def test_mistakes_are_answered_in_one_line(write_run, report, tmp_path, argument, message):
    for replay in ("uniform", "per"):
        write_run("fresh", replay=replay)
    for power in (1.0, 8.0):
        write_run("vmf_power", **{"sampler.power": power})
    code, _, error = report(argument)
    assert code == 2
    (line,) = error.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "report").exists()


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
    critics, baseline, comparable, write_run, study_of
):
    write_run("fresh", num_critics=critics[0], **baseline)
    write_run("vmf_rank", num_critics=critics[1], **baseline)
    assert bool(_pairs(study_of("fresh"))) == comparable
