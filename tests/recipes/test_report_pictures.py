"""The figures of a report show the number of seeds behind each result."""

from __future__ import annotations

import csv

import pytest
from omegaconf import OmegaConf

from vmfer_recipes.reporting import statistics
from vmfer_recipes.reporting.page import write_report
from vmfer_recipes.reporting.pictures import curve_figures, improvement_figures
from vmfer_recipes.reporting.runs import read_runs
from vmfer_recipes.reporting.study import make_study

# With 5 seeds of both methods, p = 2/252. With 2 and 5, p = 2/21 > 0.05: too few.
SEEDS = {"uniform": 5, "vmf_rank": 5, "vmf_uncertainty": 2}


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 100)
    for sampler, seeds in SEEDS.items():
        for seed in range(seeds):
            run_dir = tmp_path / sampler / str(seed)
            run_dir.mkdir(parents=True)
            config = {"seed": seed, "total_frames": 100, "algorithm": "td3"}
            names = {"env": "Hopper-v4", "replay": "uniform", "sampler": sampler}
            groups = {group: {"name": name} for group, name in names.items()}
            OmegaConf.save({**config, **groups}, run_dir / "config.yaml")
            with (run_dir / "eval.csv").open("w") as file:
                file.write("step,return_mean,return_std,episode_length,success_rate\n")
                for step in range(0, 101, 10):
                    file.write(f"{step},{step + seed},1.0,1000.0,\n")
            (run_dir / "finished").touch()
    return make_study(*read_runs(tmp_path))


def _hollow(lines):
    """Returns the names of lines with white markers and of those with filled ones."""
    marked = [line for line in lines if line.get_marker() not in ("None", "", None)]
    sides = [], []
    for line in marked:
        sides[line.get_markerfacecolor() != "white"].append(line.get_label())
    return sides


def test_curves_show_n_and_are_hollow_below_four_seeds(study):
    ((_, figure, text),) = curve_figures(study, study.tasks[0])
    hollow, filled = _hollow(figure.axes[0].lines)
    assert [name.split(" · ", 1)[1] for name in hollow] == ["vmf_uncertainty · n = 2 seeds"]
    assert [name.split(" · ", 1)[1] for name in filled] == [
        "uniform · n = 5 seeds",
        "vmf_rank · n = 5 seeds",
    ]
    assert "Hollow markers: fewer than 4 seeds" in text


def test_comparisons_show_n_and_are_hollow_with_too_few_seeds(study):
    ((_, figure, _),) = improvement_figures(study)
    left, right = figure.axes
    counts = {round(text.get_position()[1], 3): text.get_text() for text in right.texts}
    points = {
        round(line.get_ydata()[0], 3): line.get_markerfacecolor() == "white"
        for line in right.lines
        if len(line.get_ydata()) == 1
    }
    assert {(counts[y], is_hollow) for y, is_hollow in points.items()} == {
        ("5 : 5", False),
        ("2 : 5", True),
    }
    assert "hollow: too few seeds" in left.get_legend_handles_labels()[1]


def test_tables_without_rows_have_a_header(study, tmp_path):
    write_report(study, tmp_path / "report")
    for name, first in (("left_out", "run"), ("scores_success_rate", "task"), ("speed", "task")):
        with (tmp_path / "report" / "tables" / f"{name}.csv").open() as file:
            reader = csv.DictReader(file)
            assert list(reader) == []
            assert reader.fieldnames[0] == first
            assert len(reader.fieldnames) > 1
