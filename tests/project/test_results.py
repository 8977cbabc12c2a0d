"""The pages of studies in results/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("study", "name"),
    [("hopper_200k", "analysis"), ("hopper_200k", "diagnostics"), ("ladder", "ladder")],
)
def test_the_page_of_a_study_quotes_what_its_script_prints(study, name, monkeypatch, capsys):
    file = RESULTS / study / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{study}_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "draw", lambda returns, file: None, raising=False)
    monkeypatch.setattr(sys, "argv", [file.name])
    module.main()
    page = (RESULTS / study / "README.md").read_text()
    assert capsys.readouterr().out.strip() in page
