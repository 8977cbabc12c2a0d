"""Classes of the recipes use no private names of TorchRL's and Gymnasium's, their bases.

Those of other objects are found by ``make lint`` (ruff's rule SLF001).
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from torchrl.collectors import Collector

import vmfer_recipes

RECIPES = Path(vmfer_recipes.__file__).parent
UPSTREAM = ("torch", "torchrl", "tensordict", "gymnasium", "tqdm")


def private_names(cls: type) -> set[str]:
    """The private methods of a class, and the private names in all its methods."""
    members = [inspect.unwrap(getattr(each, "fget", each) or each) for each in vars(cls).values()]
    # Not those that a metaclass adds.
    own = [each for each in members if getattr(each, "__module__", "") == cls.__module__]
    codes = [member.__code__ for member in own if inspect.isfunction(member)]
    names = {name for code in codes for name in (code.co_name, *code.co_names)}
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def borrowed_names(cls: type) -> set[str]:
    """The private names of a class that are also those of its bases in other packages."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in UPSTREAM]
    return private_names(cls) & set().union(*map(private_names, bases))


def derived_classes():
    for file in sorted(RECIPES.rglob("*.py")):
        parts = file.relative_to(RECIPES).with_suffix("").parts
        if "configs" in parts or file.name == "ray_workers.py":  # Ray is optional
            continue
        module = importlib.import_module(".".join(("vmfer_recipes", *parts)))
        for cls in filter(inspect.isclass, vars(module).values()):
            if cls.__module__ == module.__name__:
                yield cls


@pytest.mark.parametrize("cls", list(derived_classes()), ids=lambda cls: cls.__qualname__)
def test_derived_classes_use_no_private_names_of_their_bases(cls):
    assert borrowed_names(cls) == set()


def test_the_scan_finds_overridden_and_read_names():
    class Mine(Collector):
        def _should_use_random_frames(self): ...

        def next(self):
            return self._frames

    assert borrowed_names(Mine) == {"_should_use_random_frames", "_frames"}
