"""The commands in the documentation are accepted by the recipes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.command_line import read_command_line
from vmfer_recipes.config.launch import Recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    *(ROOT / "results").glob("*/*.md"),
]
CONFIGS = algorithms()
# Shown as mistakes, or with files of the user.
WRONG = ("--seed 3", "lr=1e-4", "--config-dir my_configs")


# The first pages that users read; `make test-all` checks the others.
FIRST = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("getting_started", "environments", "sweeps")),
]


def commands(is_first):
    found = set()
    for page in PAGES:
        if (page in FIRST) != is_first:
            continue
        text = page.read_text().replace("\\\n", " ")
        names = "|".join(CONFIGS)
        for name, arguments in re.findall(rf"python recipes/({names})\.py([^`#\n]*)", text):
            if not any(part in arguments for part in WRONG) and "--help" not in arguments:
                found.add((name, " ".join(arguments.split())))
    return sorted(found)


def test_there_are_commands():
    assert len(commands(True)) > 10
    assert len(commands(False)) > 20


def first_value(argument):
    override = OverridesParser.create().parse_override(argument)
    if not override.is_sweep_override():
        return argument
    return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*commands(True), *(pytest.param(*each, marks=pytest.mark.slow) for each in commands(False))],
)
def test_a_documented_command_is_valid(name, arguments, monkeypatch):
    if "collector=ray" in arguments:
        pytest.importorskip("ray")  # an extra of several hundred MB
    monkeypatch.chdir(ROOT)
    overrides, _ = read_command_line(shlex.split(arguments), CONFIGS[name])
    unsuited = ("glob(", "launcher")
    given = [each for each in overrides if not any(part in each for part in unsuited)]
    cfg = Recipe(name, CONFIGS[name], print, name).compose(list(map(first_value, given)))
    assert isinstance(cfg, CONFIGS[name])
    # The documented values take effect.
    written = dict(first_value(each).lstrip("+").split("=", 1) for each in given)
    for key, value in written.items():
        if key in ("seed", "total_frames"):
            assert getattr(cfg, key) == float(value)
        elif key in ("env", "sampler", "replay"):
            assert getattr(cfg, key).name == value.rpartition(".")[2]
