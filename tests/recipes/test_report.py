"""The report against known numbers and independent references."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.browser import CHROMIUM, REASON, view
from helpers.report_runs import write_report_run
from vmfer_recipes.report import command, inference
from vmfer_recipes.report.figures import curve_figures, improvement_figures
from vmfer_recipes.report.page import write_report
from vmfer_recipes.report.runs import read_runs
from vmfer_recipes.report.study import make_study


@pytest.fixture
def write_run(tmp_path):
    return functools.partial(write_report_run, tmp_path / "runs")


@pytest.fixture
def fewer_repetitions(monkeypatch):
    """Speeds up tests that do not check intervals."""
    monkeypatch.setattr(inference, "REPETITIONS", 100)


@pytest.fixture
def study_of(tmp_path, fewer_repetitions):
    return lambda: make_study(*read_runs(tmp_path / "runs"))


# From runs to results.


@pytest.mark.parametrize(
    "other",
    [
        {"num_critics": 5},
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
    # Of the last tenth, there are evaluations at steps 900 and 1000.
    assert comparison.cell.final["return"] == pytest.approx([(99 + 110) / 2] * 3)
    assert comparison.cell.area["return"] == pytest.approx([55] * 3)
    curve = comparison.baseline.curves["return"]
    assert list(curve["step"]) == [0, 250, 500, 750, 1000]
    assert curve["mean"] == pytest.approx([0, 25, 50, 75, 100])


def test_versions_and_lengths_are_never_mixed_and_missing_cells_are_listed(write_run, study_of):
    for env, total in (("Hopper-v4", 1000), ("Hopper-v5", 1000), ("Hopper-v4", 2000)):
        for sampler in ("uniform", "vmf_rank"):
            write_run(sampler, 0, 100, env=env, total=total)
    write_run("uniform", 0, 100, env="Ant-v4")
    study = study_of()
    assert len(study.comparisons) == len(study.averages) == 3
    for comparison in study.comparisons:
        assert comparison.cell.task == comparison.baseline.task
    assert any("vmf_rank has no run on Ant-v4" in note for note in study.notes)


def test_unfinished_runs_are_listed_and_do_not_count(write_run, study_of):
    write_run("uniform", 0, 100)
    stopped = write_run("uniform", 1, 5000, stop=400)
    study = study_of()
    (cell,) = study.cells.values()
    assert [run.seed for run in cell.runs] == [0]
    (left_out,) = study.left_out
    assert stopped.as_posix().endswith(left_out.path)
    assert "400 of 1,000" in left_out.reason


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


def test_success_rate_is_the_score_where_there_is_one(write_run, study_of):
    for sampler, rate in (("uniform", 0.5), ("vmf_ema", 1.0)):
        for seed in range(4):
            write_run(sampler, seed, -50, success=rate, replay="her", env="FetchPush-v4")
    (comparison,) = study_of().comparisons
    assert comparison.cell.score_name == "success_rate"
    assert comparison.improvement.value == pytest.approx(200)


def test_a_seed_found_twice_counts_once(write_run, study_of, tmp_path):
    shutil.copytree(write_run("uniform", 0, 100), tmp_path / "runs" / "copy")
    study = study_of()
    assert [len(cell.runs) for cell in study.cells.values()] == [1]
    assert "same settings and seed" in study.left_out[0].reason


BOMB = "a: !!python/object/apply:os.abort []\n"
DAMAGE = {
    "config.yaml": ["", "a: [", "seed: 1\n", "seed: x\ntotal_frames: 1\n", "\0", BOMB],
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
        patch.setattr(inference, "REPETITIONS", 100)
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
    names = ("comparisons", "curves", "average_improvement")
    rows, curves, averages = (pd.read_csv(report / "tables" / f"{name}.csv") for name in names)
    comparison = make_study(*read_runs(runs)).comparisons[0]
    assert rows["P(improvement)"][0] == comparison.probability.value
    assert rows["P(improvement) high"][0] == comparison.probability.high
    assert {*curves["metric"]} == {"return", "success_rate"}
    assert {*averages["paper, % of baseline"].dropna()} == {111.62, 117.75}


def test_tables_without_rows_have_a_header(write_run, study_of, tmp_path):
    (write_run() / "train.csv").unlink()
    write_report(study_of(), tmp_path / "report")
    for name, width in (("left_out", 2), ("scores_success_rate", 7), ("speed", 5)):
        table = pd.read_csv(tmp_path / "report" / "tables" / f"{name}.csv")
        assert table.empty
        assert len(table.columns) == width


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
        found = pd.read_csv(tmp_path / "tables" / table.name)
        pd.testing.assert_frame_equal(found, pd.read_csv(table), rtol=1e-9)


@pytest.mark.skipif(CHROMIUM is None, reason=REASON)
def test_a_browser_shows_every_figure_without_errors(report, tmp_path):
    seen = view(report / "report.html", tmp_path)
    pictures = (report / "report.html").read_text().count("<img")
    assert f'data-shown="{pictures}"' in seen.document
    assert 'data-wide="false"' in seen.document
    assert "CONSOLE" not in seen.messages
    assert seen.screenshot.stat().st_size > 20_000


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


@pytest.mark.parametrize(
    "name", ["report.md", "report.html", "tables/runs.csv", "pictures/curves_mine.png"]
)
def test_files_that_no_report_wrote_are_kept(name, write_run, tmp_path, monkeypatch, capsys):
    write_run()
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    monkeypatch.setattr(
        sys, "argv", ["report.py", f"{tmp_path / 'runs'}", f"out={tmp_path / 'out'}"]
    )
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{mine} was not written by this program" in line
    assert [file for file in (tmp_path / "out").rglob("*") if file.is_file()] == [mine]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("package", ["matplotlib", "rliable", "statsmodels"])
def test_missing_packages_are_reported_with_the_install_command(tmp_path, package):
    script = Path(__file__).parents[2] / "recipes" / "report.py"
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['report.py', '.'];"
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "pip install '.[report]'" in line


# The figures.


@pytest.fixture
def uneven_study(write_run, study_of):
    """With 5 seeds of both methods, p = 2/252 at best. With 2 and 5, 2/21 > 0.05: too few."""
    for sampler, seeds in {"uniform": 5, "vmf_rank": 5, "vmf_uncertainty": 2}.items():
        for seed in range(seeds):
            write_run(sampler, seed, 100 + seed)
    return study_of()


def test_curves_show_n_and_are_hollow_below_four_seeds(uneven_study):
    ((_, figure, text),) = curve_figures(uneven_study, uneven_study.tasks[0])
    looks = {
        line.get_label().split(" · ", 1)[1]: line.get_markerfacecolor() == "white"
        for line in figure.axes[0].lines
    }
    assert looks == {
        "uniform · n = 5 seeds": False,
        "vmf_rank · n = 5 seeds": False,
        "vmf_uncertainty · n = 2 seeds": True,
    }
    assert "Hollow markers: fewer than 4 seeds" in text


def test_comparisons_show_n_and_are_hollow_with_too_few_seeds(uneven_study):
    ((_, figure, _),) = improvement_figures(uneven_study)
    left, right = figure.axes
    counts = {round(text.get_position()[1], 3): text.get_text() for text in right.texts}
    hollow = {
        counts[round(line.get_ydata()[0], 3)]: line.get_markerfacecolor() == "white"
        for line in right.lines
        if len(line.get_ydata()) == 1
    }
    assert hollow == {"5 : 5": False, "2 : 5": True}
    assert "hollow: too few seeds" in left.get_legend_handles_labels()[1]
