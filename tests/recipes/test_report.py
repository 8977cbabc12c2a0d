"""The report against known numbers and independent references."""

from __future__ import annotations

import csv
import functools
import importlib
import itertools
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.browser import CHROMIUM, REASON, view
from helpers.report_runs import write_report_run
from vmfer_recipes.reporting import statistics
from vmfer_recipes.reporting.methods import Method, Task
from vmfer_recipes.reporting.page import write_report
from vmfer_recipes.reporting.pictures import curve_figures
from vmfer_recipes.reporting.runs import read_runs
from vmfer_recipes.reporting.study import make_study


@pytest.fixture
def write_run(tmp_path):
    return functools.partial(write_report_run, tmp_path / "runs")


@pytest.fixture
def fewer_repetitions(monkeypatch):
    """Speeds up tests that do not check intervals."""
    monkeypatch.setattr(statistics, "REPETITIONS", 100)


@pytest.fixture
def study_of(tmp_path, fewer_repetitions):
    return lambda: make_study(*read_runs(tmp_path / "runs"))


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


# Statistics.


def test_the_interquartile_mean_drops_a_quarter_at_both_ends():
    scores = np.array([9.0, 1.0, 100.0, 3.0, 5.0, 4.0, -50.0, 8.0])
    assert statistics.interquartile_mean(scores) == np.mean([3, 4, 5, 8])
    assert statistics.interquartile_mean(scores[:3]) == pytest.approx(scores[:3].mean())


def test_iqm_and_probability_agree_with_rliable():
    from rliable import metrics

    generator = np.random.default_rng(0)
    for size, other in ((2, 3), (5, 5), (7, 4), (16, 9)):
        # Rounded, so that there are ties.
        x, y = generator.normal(size=size).round(1), generator.normal(size=other).round(1)
        assert statistics.interquartile_mean(x) == pytest.approx(metrics.aggregate_iqm(x[:, None]))
        assert statistics.probability_of_improvement(x, y) == pytest.approx(
            metrics.probability_of_improvement(x[:, None], y[:, None])
        )


def test_the_bootstrap_interval_equals_that_of_all_resamples():
    """With three seeds, all 27 resamples can be listed, so the percentiles are known exactly."""
    scores = np.array([1.0, 2.0, 6.0])
    means = [np.mean(resample) for resample in itertools.product(scores, repeat=3)]
    low, high = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    found = statistics.estimate(np.mean, scores)
    assert found.value == pytest.approx(3)
    # The lowest and highest mean have a probability of 1/27 > 2.5 % each.
    assert (found.low, found.high) == pytest.approx((low, high)) == (1.0, 6.0)


def test_cells_of_different_sizes_are_resampled_independently():
    """The interval of a difference of means, against resamples drawn with NumPy alone."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(1, 1, 12), generator.normal(0, 2, 7)
    found = statistics.estimate(lambda a, b: a.mean() - b.mean(), x, y)
    draws = [
        generator.choice(x, len(x)).mean() - generator.choice(y, len(y)).mean()
        for _ in range(20_000)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    assert found.low == pytest.approx(low, abs=0.12)
    assert found.high == pytest.approx(high, abs=0.12)


@pytest.mark.slow
def test_intervals_have_about_the_stated_coverage():
    """Percentile intervals of 5 normal seeds: about 84 %; of 30: about 93 %. Noise: ±4 %."""
    generator = np.random.default_rng(2)
    for seeds, expected in ((5, 0.84), (30, 0.935)):
        hits = 0
        for _ in range(300):
            found = statistics.estimate(np.mean, generator.normal(size=seeds))
            hits += found.low <= 0 <= found.high
        assert hits / 300 == pytest.approx(expected, abs=0.065)  # three standard errors


def test_estimates_are_reproducible_and_do_not_use_the_global_generator():
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = statistics.estimate(np.mean, np.arange(6.0))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    np.random.seed(8)  # noqa: NPY002
    assert statistics.estimate(np.mean, np.arange(6.0)) == first


def test_a_single_seed_has_no_interval():
    assert math.isnan(statistics.estimate(np.mean, np.array([1.0])).low)
    assert np.isnan(statistics.column_estimates(np.ones((1, 4)))["iqm_high"]).all()


@pytest.mark.parametrize(("seeds", "others"), [(1, 1), (3, 3), (4, 4), (2, 9), (5, 3)])
def test_the_lowest_possible_p_value_is_that_of_the_rank_sum_test(seeds, others):
    from scipy.stats import mannwhitneyu

    separated = mannwhitneyu(np.arange(seeds) + 100, np.arange(others), method="exact").pvalue
    assert statistics.best_possible_p((seeds, others)) == pytest.approx(separated)


def test_tasks_together_may_be_significant_when_no_single_one_is():
    """All 20 rankings of 3 + 3 seeds are equally likely on each of two tasks: p = 2/400."""
    assert statistics.best_possible_p((3, 3)) == pytest.approx(0.1)
    assert statistics.best_possible_p((3, 3), (3, 3)) == pytest.approx(2 / 400)


# From runs to results.


def test_final_score_and_area_of_a_known_curve(write_run, study_of):
    write_run(end=100.0)
    (cell,) = study_of().cells.values()
    assert cell.final["return"] == pytest.approx([(90 + 100) / 2])  # evaluations at 900 and 1000
    assert cell.area["return"] == pytest.approx([50])
    assert cell.curves["return"]["mean"][3] == pytest.approx(30)


@pytest.mark.parametrize(
    "other",
    [
        {"num_critics": 5},
        {"directions": "pre_tanh"},
        {"sampler.share": 0.5},
        {"hidden": [64, 64]},
        {"env.kwargs.ctrl_cost_weight": 0.0},
        {"replay.buffer_size": 1000},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_settings_than_the_papers_have_no_number_of_the_paper(other, write_run, study_of):
    for seed in range(2):
        write_run("uniform", seed, 100, **other)
        write_run("vmf_rank", seed, 120, **other)
    (average,) = study_of().averages
    assert average.paper is None


def test_improvement_is_a_mean_of_ratios_over_tasks(write_run, study_of):
    for env, base, gain in (("Hopper-v4", 100, 1.2), ("Ant-v4", 1000, 1.0)):
        for seed in range(4):
            write_run("uniform", seed, base, env=env)
            write_run("vmf_rank", seed, base * gain, env=env)
    study = study_of()
    (average,) = study.averages
    assert average.improvement.value == pytest.approx(110)
    assert average.probability.value == pytest.approx(0.75)  # 1 on Hopper, ties on Ant
    assert average.paper == 111.62
    verdicts = {c.cell.task.environment: c.verdict for c in study.comparisons}
    assert verdicts == {"Hopper-v4": "above the baseline", "Ant-v4": "undecided"}


def test_unequal_numbers_of_seeds_and_grids(write_run, study_of):
    for seed in range(5):
        write_run("uniform", seed, 100, interval=100 if seed else 250)
    for seed in range(3):
        write_run("vmf_rank", seed, 110)
    study = study_of()
    (comparison,) = study.comparisons
    assert (len(comparison.cell.runs), len(comparison.baseline.runs)) == (3, 5)
    curve = comparison.baseline.curves["return"]
    assert list(curve["step"]) == [0, 250, 500, 750, 1000]
    assert curve["mean"] == pytest.approx([0, 25, 50, 75, 100])


def test_unfinished_runs_are_listed_and_do_not_count(write_run, study_of):
    write_run("uniform", 0, 100)
    stopped = write_run("uniform", 1, 5000, stop=400)
    study = study_of()
    (cell,) = study.cells.values()
    assert [run.seed for run in cell.runs] == [0]
    (left_out,) = study.left_out
    assert stopped.as_posix().endswith(left_out.path)
    assert "400 of 1,000" in left_out.reason


def test_kept_runs_of_which_only_configuration_and_table_remain(write_run, study_of):
    for seed in range(2):
        for sampler in ("uniform", "vmf_rank"):
            run_dir = write_run(sampler, seed, 100)
            (run_dir / "finished").unlink()
            (run_dir / "train.csv").unlink()
    study = study_of()
    assert all(cell.complete for cell in study.cells.values())
    assert len(study.comparisons) == 1


def test_a_cell_without_a_finished_run_has_only_a_curve(write_run, study_of, tmp_path):
    write_run("uniform", 0, 100, stop=400)
    write_run("uniform", 1, 100, stop=700)
    study = study_of()
    (cell,) = study.cells.values()
    assert cell.curves["return"]["step"][-1] == 400
    assert not cell.complete
    assert not cell.final
    assert any("no run of TD3 · uniform is finished" in note for note in study.notes)
    write_report(study, tmp_path / "report")


def test_versions_and_lengths_are_never_mixed(write_run, study_of):
    for env, total in (("Hopper-v4", 1000), ("Hopper-v5", 1000), ("Hopper-v4", 2000)):
        for sampler in ("uniform", "vmf_rank"):
            write_run(sampler, 0, 100, env=env, total=total)
    study = study_of()
    assert len(study.tasks) == len(study.comparisons) == len(study.averages) == 3
    for comparison in study.comparisons:
        assert comparison.cell.task == comparison.baseline.task
    assert all(len(average.comparisons) == 1 for average in study.averages)


def test_different_hyperparameters_are_different_methods_with_different_labels(write_run, study_of):
    for critics in (2, 5):
        write_run("vmf_rank", 0, 100, num_critics=critics)
    for ratio in (1, 3):
        write_run("uniform", 0, 100, utd_ratio=ratio)
    write_run("vmf_uncertainty", 0, 100, utd_ratio=5)
    study = study_of()
    labels = set(study.method_labels.values())
    assert labels == {
        "TD3 · vmf_rank, num_critics=2",
        "TD3 · vmf_rank, num_critics=5",
        "TD3 · uniform, utd_ratio=1",
        "TD3 · uniform, utd_ratio=3",
        "TD3 · vmf_uncertainty",
    }
    notes = {c.cell.method: c.note for c in study.comparisons}
    # Five critics are compared with the two of the baseline, and five updates with nothing.
    assert sorted(notes.values()) == ["", "num_critics=2"]
    assert any("vmf_uncertainty has no comparison" in note for note in study.notes)


def test_methods_whose_critics_all_count_are_not_compared_across_ensemble_sizes(
    write_run, study_of
):
    for algorithm in ("redq", "crossq"):
        write_run("vmf_rank", 0, 100, algorithm=algorithm, num_critics=10)
        write_run("uniform", 0, 100, algorithm=algorithm, num_critics=5)
    assert [c.cell.method.algorithm for c in study_of().comparisons] == ["crossq"]


def test_names_contain_only_settings_that_vary_within_a_task(write_run, study_of):
    write_run("vmf_rank", 0, 100, env="Hopper-v4", init_random_frames=25000)
    write_run("vmf_rank", 0, 100, env="InvertedPendulum-v4", init_random_frames=1000)
    assert set(study_of().method_labels.values()) == {"TD3 · vmf_rank"}


def test_no_legend_is_cut_when_many_settings_vary(write_run, study_of):
    for number in range(4):
        settings = {f"a_setting_with_a_long_name_{i}": number for i in range(6)}
        write_run("uniform", 0, 100, **settings)
        write_run("vmf_rank", 0, 100, **settings)
    study = study_of()
    ((_, figure, _),) = curve_figures(study, study.tasks[0])
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= legend.y0


def test_percentages_of_a_negative_baseline_are_rejected(write_run, study_of):
    for seed in range(4):
        write_run("uniform", seed, -10)
        write_run("vmf_rank", seed, 20)
    study = study_of()
    (comparison,) = study.comparisons
    assert comparison.improvement is None
    assert comparison.probability.value == 1
    assert not study.averages
    assert any("a percentage of it is meaningless" in note for note in study.notes)


def test_success_rate_is_the_score_where_there_is_one(write_run, study_of):
    for sampler, rate in (("uniform", 0.5), ("vmf_ema", 1.0)):
        for seed in range(4):
            write_run(sampler, seed, -50, success=rate, replay="her", env="FetchPush-v4")
    (comparison,) = study_of().comparisons
    assert comparison.cell.score_name == "success_rate"
    assert comparison.improvement.value == pytest.approx(200)


def test_missing_cells_are_listed(write_run, study_of):
    for env in ("Hopper-v4", "Ant-v4"):
        write_run("uniform", 0, 100, env=env)
    write_run("vmf_rank", 0, 100, env="Hopper-v4")
    assert any("has no run on Ant-v4" in note for note in study_of().notes)


def test_a_seed_found_twice_counts_once(write_run, study_of, tmp_path):
    shutil.copytree(write_run("uniform", 0, 100), tmp_path / "runs" / "copy")
    study = study_of()
    assert [len(cell.runs) for cell in study.cells.values()] == [1]
    assert "same settings and seed" in study.left_out[0].reason


DAMAGE = {
    "config.yaml": ["", "a: [", "seed: 1\n", "seed: x\ntotal_frames: 1\n", "\0"],
    "eval.csv": [
        "",
        "step,return_mean\n",
        "step,other\n0,1\n",
        "step,return_mean\n0,1,2\n",
        "step,return_mean\n0,abc\n",
        "step,return_mean\n100,1\n0,1\n",
        "step,return_mean\n0,nan\n",
    ],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, text) for name, texts in DAMAGE.items() for text in texts]
)
def test_damaged_files_are_skipped_and_listed(write_run, tmp_path, name, content):
    write_run("uniform", 0)
    damaged = write_run("uniform", 1)
    (damaged / name).write_text(content)
    runs, left_out = read_runs(tmp_path / "runs")
    assert [run.seed for run in runs] == [0]
    (item,) = left_out
    assert damaged.as_posix().endswith(item.path)
    assert name.split(".")[0] in item.reason


def test_no_code_in_a_config_is_executed(write_run, tmp_path):
    trap = tmp_path / "trap"
    run_dir = write_run()
    text = f'a: !!python/object/apply:os.mkdir ["{trap}"]\n'
    (run_dir / "config.yaml").write_text(text)
    assert read_runs(tmp_path / "runs")[0] == []
    assert not trap.exists()


# The report itself.


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("report") / "runs"
    generator = np.random.default_rng(3)
    for env, sampler in itertools.product(
        ("Hopper-v4", "<b>Odd|Name-v0"), ("uniform", "vmf_rank", "vmf_uncertainty")
    ):
        for seed in range(3):
            write_report_run(root, sampler, seed, 100 + 30 * generator.normal(), env=env)
    for sampler in ("uniform", "vmf_ema"):
        write_report_run(root, sampler, 0, 10, env="FetchPush-v4", replay="her", success=0.8)
    write_report_run(root, "vmf_rank", 9, 100, stop=300)
    return root


def _make_report(runs: Path, out: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "REPETITIONS", 100)
        write_report(make_study(*read_runs(runs)), out)
    return out


@pytest.fixture(scope="module")
def report(runs):
    return _make_report(runs, runs.parent / "report")


def test_the_page_is_self_contained(report):
    page = (report / "report.html").read_text()
    pictures = len(list((report / "pictures").glob("*.png")))
    assert page.count("data:image/png;base64,") == pictures >= 4
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "://" not in page
    assert "<b>Odd" not in page  # names are escaped, not markup
    assert "too few to detect a difference" in page
    assert "Finding: no method is shown to differ from its baseline." in page
    assert "unfinished: evaluated to step 300 of 1,000" in page


def test_the_markdown_shows_the_figures(report):
    text = (report / "report.md").read_text()
    for picture in re.findall(r"\]\((pictures/.+?\.png)\)", text):
        assert (report / picture).exists()
    for line in text.splitlines():  # rows of a table have as many cells as its head
        if line.startswith("| ---"):
            width = line.count("|")
        if line.startswith("| ") and "Odd" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == width


def test_tables_contain_all_digits_and_intervals(runs, report, fewer_repetitions):
    rows = _rows(report / "tables" / "comparisons.csv")
    comparison = make_study(*read_runs(runs)).comparisons[0]
    assert float(rows[0]["P(improvement)"]) == comparison.probability.value
    assert float(rows[0]["P(improvement) high"]) == comparison.probability.high
    curves = _rows(report / "tables" / "curves.csv")
    assert {row["metric"] for row in curves} == {"return", "success_rate"}
    averages = _rows(report / "tables" / "average_improvement.csv")
    assert {row["paper, % of baseline"] for row in averages} == {"111.62", "117.75", ""}


def test_the_same_runs_give_the_same_bytes(runs, report, tmp_path):
    _make_report(runs, tmp_path / "again")
    files = [file for file in report.rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(report)).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("study", ["hopper", "inverted_pendulum"])
def test_a_kept_report_is_what_its_runs_give(study, tmp_path):
    kept = Path(__file__).parents[2] / "results" / study
    write_report(make_study(*read_runs(kept / "runs")), tmp_path)
    assert (tmp_path / "report.md").read_text() == (kept / "report.md").read_text()
    for table in (kept / "tables").iterdir():
        assert (tmp_path / "tables" / table.name).read_text() == table.read_text()


def test_the_program_reports_its_output_and_errors(
    runs, tmp_path, monkeypatch, capsys, fewer_repetitions
):
    program = importlib.import_module("vmfer_recipes.report")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["report.py", str(runs)])
    program.main()
    assert "1 left out" in capsys.readouterr().out
    assert (tmp_path / "report" / "report.html").exists()
    (tmp_path / "empty").mkdir()
    for arguments in (["empty"], ["nowhere"], [], [str(runs), "colour=red"]):
        monkeypatch.setattr(sys, "argv", ["report.py", *arguments])
        with pytest.raises(SystemExit) as exit_:
            program.main()
        assert exit_.value.code == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert len(message.splitlines()) == 1


@pytest.mark.skipif(CHROMIUM is None, reason=REASON)
def test_a_browser_shows_every_figure_without_errors(report, tmp_path):
    seen = view(report / "report.html", tmp_path)
    pictures = (report / "report.html").read_text().count("<img")
    assert f'data-shown="{pictures}"' in seen.document
    assert 'data-wide="false"' in seen.document
    assert "CONSOLE" not in seen.messages
    assert seen.screenshot.stat().st_size > 20_000


def test_task_names_include_the_version():
    assert Task("Hopper-v4", 1).version == "v4"
    assert Task("Hopper-v4", 1).name == "Hopper"
    assert Task("Custom", 1).version == ""
    assert Method("sac", "per_rank", "uniform", ()).family_label == "SAC+per_rank"


def test_offline_runs_are_compared_on_the_same_dataset(write_run, tmp_path):
    for dataset in ("random", "medium"):
        for sampler in ("uniform", "vmf_rank"):
            write_run(sampler, algorithm="td3_bc", dataset=dataset)
    runs, _ = read_runs(tmp_path / "runs")
    tasks, methods = {Task.of(run) for run in runs}, {Method.of(run) for run in runs}
    assert {task.variant for task in tasks} == {
        (("dataset", "'random'"),),
        (("dataset", "'medium'"),),
    }
    assert len(methods) == 2


def test_a_report_replaces_all_of_an_earlier_one(write_run, study_of, tmp_path):
    folder = tmp_path / "report"
    write_run("uniform")
    run = write_run("vmf_rank")
    write_report(study_of(), folder)
    assert (folder / "tables" / "comparisons.csv").exists()
    assert list(folder.glob("pictures/improvement_*.png"))
    own = folder / "tables" / "mine.csv"
    own.write_text("kept")
    shutil.rmtree(run)
    write_report(study_of(), folder)
    fresh = tmp_path / "fresh"
    write_report(study_of(), fresh)
    own.unlink()
    files = [{str(f.relative_to(each)) for f in each.rglob("*")} for each in (folder, fresh)]
    assert files[0] == files[1]
