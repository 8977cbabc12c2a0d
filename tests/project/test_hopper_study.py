"""The pre-registered analysis of results/hopper_200k."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

STUDY = Path(__file__).parents[2] / "results" / "hopper_200k"


def script(name):
    spec = importlib.util.spec_from_file_location(f"hopper_200k_{name}", STUDY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def analysis():
    return script("analysis")


FINALS = {  # the final returns of six seeds
    "A": [200, 240, 180, 260, 300, 220],
    "B": [400, 480, 500, 420, 460, 520],
    "C": [190, 250, 260, 210, 280, 230],
    "D": [310, 350, 360, 330, 340, 370],
    "E": [250, 350, 270, 300, 400, 260],
}


def test_p_values_and_correction_agree_with_scipy(analysis):
    areas = {arm: np.array(finals) / 2 for arm, finals in FINALS.items()}
    found = analysis.compare(areas)
    p_values = []
    for name, (arm, other) in analysis.HYPOTHESES.items():
        expected = stats.permutation_test(
            (np.log(areas[arm]), np.log(areas[other])),
            lambda x, y, axis: x.mean(axis) - y.mean(axis),
            vectorized=True,
            n_resamples=np.inf,
        )
        assert found[name].p == pytest.approx(expected.pvalue)
        p_values.append(expected.pvalue)
    # Holm: the smallest times 4, the next times 3, and so on, never decreasing.
    ordered = np.argsort(p_values)
    expected = np.minimum(1, np.maximum.accumulate(np.sort(p_values) * [4, 3, 2, 1]))
    names = list(analysis.HYPOTHESES)
    for i, corrected in zip(ordered, expected, strict=True):
        assert found[names[i]].corrected_p == pytest.approx(corrected)


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
