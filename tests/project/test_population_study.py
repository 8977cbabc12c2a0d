"""The analysis of results/populations finds effects that are there, and only these."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

STUDY = Path(__file__).parents[2] / "results" / "populations"


def script(name):
    spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study():
    return script("study")


@pytest.fixture(scope="module")
def analysis(study):
    return script("analysis")


@pytest.fixture
def tables(study, analysis, tmp_path, monkeypatch):
    """``tables(**effects)``: writes runs whose arms differ by effects in standard deviations."""

    def write(**effects):
        generator = np.random.default_rng(0)
        luck = {}
        for cell, runs in study.rounds():
            rows = []
            for run in runs:
                # A seed is good or bad in all arms of a cell, whose returns have any scale.
                lucky = luck.setdefault((cell.name, run.seed), generator.normal())
                own = 0.6 * lucky + 0.8 * generator.normal()
                auc = 100 * study.CELLS.index(cell) + cell.steps * (own + effects.get(run.arm, 0))
                rows.append(
                    {"arm": run.arm, "seed": run.seed, "status": "finished", "auc": auc}
                    | {"final": auc, "age": 0.5, "saturation": 0.5, "curve": "0 1"}
                )
            study.add_rows(tmp_path / "tables", cell, rows)
        monkeypatch.setattr(analysis, "HERE", tmp_path)
        monkeypatch.setattr(sys, "argv", ["analysis.py"])

    return write


def test_pages_quote_what_the_scripts_print(analysis, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [""])
    printed = ""
    for module in (analysis, script("paper_size")):
        module.main()
        output = capsys.readouterr().out
        assert output.strip() in (STUDY / "README.md").read_text()
        printed += output
    root = STUDY.parents[1]
    for page in ("README.md", "docs/evidence.md", "docs/method.md", "results/README.md"):
        text = (root / page).read_text().split("## The claim to test")[0]  # other studies follow
        quoted = re.findall(r"[+-]\d\.\d{3}\b", text)
        assert quoted, page
        assert [number for number in quoted if number not in printed] == [], page


def numbers(report, row):
    """The numbers in the first cells of a row: effect and bounds of its interval."""
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {row} |")][:1]
    return [float(number.strip("[],")) for number in line.split("|")[2].split()]


def test_known_effects_are_found(analysis, tables, capsys):
    tables(power4=0.4, rank=-0.3, saturated=0.4)
    analysis.main()
    report = capsys.readouterr().out
    assert report.count("| helps |") == report.count("| hurts |") == 1
    assert numbers(report, "power4")[0] == pytest.approx(0.4, abs=0.1)
    assert numbers(report, "rank")[0] == pytest.approx(-0.3, abs=0.1)
    assert "not shown" in report  # the gain equals that of a control
    low, high = numbers(report, "old")[1:]
    assert low < 0.4 < high


def test_the_picture_is_drawn(analysis, tables, tmp_path):
    tables()
    runs = analysis.complete(analysis.load(tmp_path / "tables"), number=12)
    script("figure").draw(analysis.Effects(runs), tmp_path / "effects.png")
    assert (tmp_path / "effects.png").read_bytes().startswith(b"\x89PNG")


def test_a_gain_beyond_both_controls_is_attributed(analysis, tables, capsys):
    tables(power4=0.5, old=0.1, saturated=0.2)
    analysis.main()
    assert "beyond age and saturation" in capsys.readouterr().out


def test_without_effects_none_is_found(analysis, tables, capsys):
    tables()
    analysis.main()
    report = capsys.readouterr().out
    assert "helps" not in report
    assert "hurts" not in report
    assert "not tested" in report


def test_an_interval_of_many_precise_pairs_is_no_effect(analysis):
    values = np.random.default_rng(0).normal(0.01, 0.2, 96)
    assert analysis.equivalence(values) < 0.05 < analysis.equivalence(3 * values)
    assert analysis.verdict(0.01, differs=False, is_equivalent=True) == "no effect"
    assert analysis.verdict(0.05, differs=True, is_equivalent=True) == "helps, negligibly"


def test_nothing_is_compared_before_the_last_run(analysis, study, tables, tmp_path):
    tables()
    file = tmp_path / "tables" / f"{study.CELLS[0].name}.csv"
    pd.read_csv(file)[1:].to_csv(file, index=False)
    with pytest.raises(SystemExit, match="nothing is compared"):
        analysis.main()


def test_the_study_is_balanced_and_paired(study):
    runs = pd.DataFrame(
        [(cell.name, *run) for cell, chosen in study.rounds() for run in chosen],
        columns=["cell", "arm", "seed"],
    )
    assert not runs.duplicated().any()
    assert runs["seed"].between(10_000, 10_095).all()
    counts = runs[runs["arm"] != "per"].groupby(["arm", "cell"])["seed"].nunique().unstack()
    assert (counts.loc[[*study.CONFIRMATORY]] == 96).all(axis=None)
    assert (counts.drop([*study.CONFIRMATORY]) == 48).all(axis=None)


def test_a_run_becomes_a_row_once(study, tmp_path, monkeypatch):
    cell = study.Cell("td3", "GoalReaching3-v0", 1200, 1.5, 3.0)
    monkeypatch.setitem(study.ARMS, "short", "sampler=old sampler.exponent={old} log_interval=100")
    runs = [study.Run("short", seed) for seed in (7, 8)]
    study.train(cell, runs[:1], tmp_path / "runs", tmp_path)
    first = study.read_table(tmp_path, cell)
    study.train(cell, runs, tmp_path / "runs", tmp_path)
    table = study.read_table(tmp_path, cell)
    assert table["seed"].tolist() == [7, 8]
    pd.testing.assert_frame_equal(table[:1], first)
    assert not list((tmp_path / "runs").rglob("train.csv"))
    curve = [float(value) for value in table["curve"][0].split()]
    assert table["auc"][0] == pytest.approx(np.mean(curve), rel=1e-3)
    assert table["episodes"][0] == len(curve) == 2
    assert table["age"][0] > 0.5


def test_a_diverged_run_keeps_its_lowest_value(study, tmp_path):
    cell = study.Cell("td3", "GoalReaching3-v0", 3000, 1.0, 1.0)
    columns = ["relative_age", "saturation", "effective_sample_size", "stored_transitions"]
    table = pd.DataFrame({"step": [1500, 2000], "episode_return": [-4.0, -2.0]})
    table.assign(num_episodes=5, **dict.fromkeys(columns, 1)).to_csv(tmp_path / "train.csv")
    row = study.measured(cell, study.Run("rank", 1), tmp_path, is_finished=False)
    assert (row["auc"], row["status"], row["curve"]) == (-3.5, "diverged", "-4 -2 -4 -4")
