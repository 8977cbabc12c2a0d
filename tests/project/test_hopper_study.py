"""The pre-registered analysis of results/hopper_200k."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "results" / "hopper_200k"


def script(name):
    spec = importlib.util.spec_from_file_location(f"hopper_200k_{name}", STUDY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def analysis():
    return script("analysis")


@pytest.mark.parametrize(
    ("ratio", "high", "corrected_p", "expected"),
    [
        (1.6, 2.0, 0.01, "H1 (uncertainty weights): the paper's claim is supported on this task."),
        (0.6, 0.8, 0.01, "H1 (uncertainty weights): this mode harms on this task."),
        (1.1, 1.4, 0.3, "H1, H2: an early effect as large as the paper's figure suggests is not"),
        (1.1, 1.6, 0.3, "H1, H2: undecided at this size."),
    ],
)
def test_the_reading_follows_the_protocol(analysis, ratio, high, corrected_p, expected):
    estimate = analysis.Estimate(ratio, 0.5, high)
    comparison = analysis.Comparison(estimate, estimate, estimate, corrected_p, corrected_p)
    nothing = comparison._replace(ratio=analysis.Estimate(1.0, 0.8, 1.2), corrected_p=1.0)
    found = {"H1": comparison, "H2": nothing, "H3": nothing, "H4": nothing}
    (line,) = analysis.readings(found)
    assert line.startswith(expected)


@pytest.mark.parametrize("name", ["analysis", "diagnostics"])
def test_the_page_of_the_study_quotes_what_its_scripts_print(name, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(module, "draw", lambda returns, file: None, raising=False)
    module.main()
    page = (STUDY / "README.md").read_text()
    assert capsys.readouterr().out.strip() in page
