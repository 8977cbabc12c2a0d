"""Undocumented parts of Hydra are used in one module, and all of them exist."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import hydra
import pytest

import vmfer_recipes
from vmfer_recipes.config._hydra import RELIED_ON

RECIPES = Path(vmfer_recipes.__file__).parent


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in RELIED_ON.items() for name in names]
)
def test_attributes_that_the_seam_relies_on_exist(owner, name):
    found = pkgutil.resolve_name(owner)
    assert hasattr(getattr(found, "instance", lambda: found)(), name), (
        f"{owner} has no {name} in hydra {hydra.__version__}: adapt recipes/config/_hydra.py, "
        "the only module that uses it."
    )


def test_recipes_use_no_internals_of_hydra_elsewhere():
    relied_on = [name for names in RELIED_ON.values() for name in names]
    pattern = re.compile("|".join([r"hydra\._", *relied_on]))
    users = {file.name for file in RECIPES.rglob("*.py") if pattern.search(file.read_text())}
    assert users == {"_hydra.py"}
