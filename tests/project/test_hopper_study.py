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


@pytest.mark.parametrize("name", ["analysis", "diagnostics"])
def test_the_page_of_the_study_quotes_what_its_scripts_print(name, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(module, "draw", lambda returns, file: None, raising=False)
    module.main()
    page = (STUDY / "README.md").read_text()
    assert capsys.readouterr().out.strip() in page
