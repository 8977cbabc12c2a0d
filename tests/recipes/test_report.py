"""The report as a program: its pages, tables and pictures, and answers to mistakes."""

from __future__ import annotations

import re
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.browser import CHROMIUM, REASON, view
from helpers.report_runs import ReportRuns
from vmfer_recipes.report import command, inference
from vmfer_recipes.report.figures import curve_figures, improvement_figures
from vmfer_recipes.report.methods import Baseline
from vmfer_recipes.report.page import write_report
from vmfer_recipes.report.runs import read_runs
from vmfer_recipes.report.study import make_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path):
    return ReportRuns(tmp_path / "runs")


@pytest.fixture
def report(tmp_path, monkeypatch, run_program):
    """Calls the program and returns its exit code, its output and its error message."""
    monkeypatch.setattr(inference, "REPETITIONS", 50)
    return partial(run_program, command.main, tmp_path / "runs", f"out={tmp_path / 'report'}")


# One large report.


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    runs = ReportRuns(tmp_path_factory.mktemp("report") / "runs")
    generator = np.random.default_rng(3)
    for env in ("Hopper-v4", "<b>Odd|Name-v0"):
        for sampler in ("uniform", "vmf_rank", "vmf_uncertainty"):
            runs.write_seeds(sampler, 100 + 30 * generator.normal(size=3), env=env)
    for sampler in ("uniform", "vmf_ema"):
        runs.write(sampler, 0, 10, env="FetchPush-v4", replay="her", success=0.8)
    runs.write("vmf_rank", 9, stop=300)
    return runs.study()


@pytest.fixture(scope="module")
def folder(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "out"
    write_report(study, folder)
    return folder


def test_the_page_is_self_contained(folder):
    page = (folder / "report.html").read_text()
    pictures = len(list((folder / "pictures").glob("*.png")))
    assert page.count("data:image/png;base64,") == pictures >= 4
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "://" not in page
    assert "<b>Odd" not in page  # names are escaped, not markup
    assert "too few to detect a difference" in page
    assert "Finding: no method is shown to differ from its baseline." in page
    assert "unfinished: evaluated to step 300 of 1,000" in page


@pytest.mark.skipif(CHROMIUM is None, reason=REASON)
def test_a_browser_shows_every_figure_without_errors(folder, tmp_path):
    seen = view(folder / "report.html", tmp_path)
    pictures = (folder / "report.html").read_text().count("<img")
    assert f'data-shown="{pictures}"' in seen.document
    assert 'data-wide="false"' in seen.document
    assert "CONSOLE" not in seen.messages
    assert seen.screenshot.stat().st_size > 20_000


def test_the_markdown_shows_the_figures(folder):
    text = (folder / "report.md").read_text()
    for picture in re.findall(r"\]\((pictures/.+?\.png)\)", text):
        assert (folder / picture).exists()
    for line in text.splitlines():  # rows of a table have as many cells as its head
        if line.startswith("| ---"):
            width = line.count("|")
        if line.startswith("| ") and "Odd" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == width


def test_tables_contain_all_digits_and_intervals(study, folder):
    names = ("comparisons", "curves", "average_improvement")
    rows, curves, averages = (pd.read_csv(folder / "tables" / f"{name}.csv") for name in names)
    comparison = study.comparisons[0]
    assert rows["P(improvement)"][0] == comparison.probability.value
    assert rows["P(improvement) high"][0] == comparison.probability.high
    assert {*curves["metric"]} == {"return", "success_rate"}
    assert {*averages["paper, % of baseline"].dropna()} == {111.62, 117.75}


@pytest.mark.slow
@pytest.mark.parametrize("study", ["hopper", "inverted_pendulum"])
def test_a_kept_report_is_what_its_runs_give(study, tmp_path):
    kept = ROOT / "results" / study
    write_report(make_study(*read_runs(kept / "runs"), Baseline()), tmp_path)
    assert (tmp_path / "report.md").read_text() == (kept / "report.md").read_text()
    for table in (kept / "tables").iterdir():
        found = pd.read_csv(tmp_path / "tables" / table.name)
        pd.testing.assert_frame_equal(found, pd.read_csv(table), rtol=1e-9)


# Small reports.


def test_one_seed_gives_a_report_without_intervals_and_effects(runs, report, tmp_path):
    runs.write("uniform")
    runs.write("vmf_rank")
    code, output, _ = report()
    assert code == 0
    assert "The smallest detectable effect is unknown" in output
    tests, comparisons = (
        (tmp_path / "report" / "tables" / f"{name}.csv").read_text().splitlines()[1]
        for name in ("tests", "comparisons")
    )
    assert tests.endswith(",1.0,1.0,1.0,,ratio,too few seeds")
    assert ",0.0,,,1.0,AUC of the return," in comparisons  # no interval of the paired difference


def test_tables_without_rows_have_a_header(runs, report, tmp_path):
    (runs.write(stop=300) / "train.csv").unlink()
    assert report()[0] == 0
    for name, width in (("left_out", 2), ("scores_success_rate", 7), ("speed", 5)):
        table = pd.read_csv(tmp_path / "report" / "tables" / f"{name}.csv")
        assert table.empty
        assert len(table.columns) == width


def test_a_report_replaces_all_of_an_earlier_one(runs, report, tmp_path):
    folder = tmp_path / "report"

    def files():
        return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}

    runs.write("uniform")
    assert report()[0] == 0
    alone = files()
    run = runs.write("vmf_rank")
    assert report()[0] == 0
    more = {"tables/comparisons.csv", "tables/tests.csv", "pictures/improvement_td3_uniform.png"}
    assert files() >= alone | more
    (folder / "tables" / "mine.csv").write_text("kept")
    shutil.rmtree(run)
    assert report()[0] == 0
    assert files() == alone | {"tables/mine.csv"}


# Mistakes.


@pytest.mark.parametrize(
    "name", ["report.md", "report.html", "tables/runs.csv", "pictures/curves_mine.png"]
)
def test_files_that_no_report_wrote_are_kept(name, runs, report, tmp_path):
    runs.write()
    mine = tmp_path / "report" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    code, _, error = report()
    assert code == 2
    (line,) = error.splitlines()
    assert f"{mine} was not written by this program" in line
    assert [file for file in (tmp_path / "report").rglob("*") if file.is_file()] == [mine]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("baseline=frehs", "replay=uniform,sampler=vmf_power,sampler.power=8."),
        ("baseline=vmf_power", ": sampler=vmf_power,sampler.power=1; sampler=vmf_power,"),
        ("baseline=replay=per,sampler=vmf_power", "No run matches baseline=replay=per,"),
        ("baseline=actor_objektive=mean", "No run has the key actor_objektive of baseline="),
        ("baseline=sampler=", "baseline=sampler= cannot be parsed: write the name of a sampler"),
        ("baseline==fresh", "cannot be parsed"),
        ("baseline=", "baseline must be a non-empty string"),
        ("until=2000", "its training ends at step 1,000, before until=2000"),
        ("until=0", "until must be a whole number from 1 to"),
        ("colour=red", "colour"),
    ],
)
def test_mistakes_are_answered_in_one_line(runs, report, tmp_path, argument, message):
    for replay in ("uniform", "per"):
        runs.write("fresh", replay=replay)
    for power in (1.0, 8.0):
        runs.write("vmf_power", **{"sampler.power": power})
    code, _, error = report(argument)
    assert code == 2
    (line,) = error.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "report").exists()


def test_missing_packages_are_reported_with_the_install_command(runs, report, monkeypatch):
    runs.write()
    monkeypatch.setitem(sys.modules, "vmfer_recipes.report.study", None)
    code, _, error = report()
    assert code == 2
    (line,) = error.splitlines()
    assert "pip install '.[report]'" in line


# The figures.


@pytest.fixture
def uneven_study(runs):
    """With 5 seeds of both methods, p = 2/252 at best. With 2 and 5, 2/21 > 0.05: too few."""
    for sampler, seeds in {"uniform": 5, "vmf_rank": 5, "vmf_uncertainty": 2}.items():
        runs.write_seeds(sampler, range(100, 100 + seeds))
    return runs.study()


def test_curves_show_n_and_are_hollow_below_four_seeds(uneven_study):
    (picture,) = curve_figures(uneven_study, *uneven_study.task_labels)
    looks = {
        line.get_label().split(" · ", 1)[1]: line.get_markerfacecolor() == "white"
        for line in picture.figure.axes[0].lines
    }
    assert looks == {
        "uniform · n = 5 seeds": False,
        "vmf_rank · n = 5 seeds": False,
        "vmf_uncertainty · n = 2 seeds": True,
    }
    assert "Hollow markers: fewer than 4 seeds" in picture.text


def test_comparisons_show_n_and_are_hollow_with_too_few_seeds(uneven_study):
    (picture,) = improvement_figures(uneven_study)
    left, right = picture.figure.axes
    counts = {round(text.get_position()[1], 3): text.get_text() for text in right.texts}
    hollow = {
        counts[round(line.get_ydata()[0], 3)]: line.get_markerfacecolor() == "white"
        for line in right.lines
        if len(line.get_ydata()) == 1
    }
    assert hollow == {"5 : 5": False, "2 : 5": True}
    assert "hollow: too few seeds" in left.get_legend_handles_labels()[1]


def test_no_legend_is_cut_when_many_settings_vary(runs):
    for number in range(4):
        settings = {f"a_setting_with_a_long_name_{i}": number for i in range(6)}
        for sampler in ("uniform", "vmf_rank"):
            runs.write(sampler, **settings)
    study = runs.study()
    (picture,) = curve_figures(study, *study.task_labels)
    picture.figure.canvas.draw()
    legend, box = picture.figure.legends[0].get_window_extent(), picture.figure.bbox
    assert box.x0 <= legend.x0 < legend.x1 <= box.x1
    assert box.y0 <= legend.y0
