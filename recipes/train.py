"""Trains with a recipe of this package or with a custom one.

python recipes/train.py td3 env=HalfCheetah-v4 sampler=vmf_rank
python recipes/train.py my_package.my_algorithm env=HalfCheetah-v4
"""

from __future__ import annotations

import sys

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.launch import Recipe, program
from vmfer_recipes.config.plugins import import_module

_PROGRAM = "python recipes/train.py"


@program
def main() -> None:
    """Runs the recipe that the first argument names."""
    if {*sys.argv[1:2]} & {"--help", "-h"}:
        print(_help_text())
        return
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    del sys.argv[1:2]
    load_recipe(name)(f"{_PROGRAM} {name}")


def _help_text() -> str:
    lines = [f"Usage: {_PROGRAM} <algorithm> [group=choice ...] [key=value ...] [-m]", ""]
    lines += ["Algorithms:"]
    for name, config in algorithms().items():
        lines.append(f"  {name:<24} {(config.__doc__ or '').splitlines()[0]}")
    lines.append(f"  {'my_package.my_algorithm':<24} A custom module with a @recipe `main`.")
    return "\n".join([*lines, "", f"Its keys: {_PROGRAM} <algorithm> --help"])


def load_recipe(name: str) -> Recipe:
    """The recipe with the given name: that of an algorithm of this package, or of a module."""
    if not name or "=" in name or name.startswith("-"):
        raise UserError(
            f"The algorithm comes first, such as `{f'{_PROGRAM} td3 {name}'.strip()}`: use "
            f"{', '.join(algorithms())} or my_package.my_algorithm."
        )
    if name.endswith(".py"):
        module = ".".join(part for part in name[:-3].split("/") if part not in ("", ".", ".."))
        raise UserError(
            f"{name} is a file, not a module: write {module}, or run it with `python {name}`."
        )
    module = f"vmfer_recipes.{name}" if name in algorithms() else name
    try:
        found = getattr(import_module(module, name), "main", None)
    except UserError as error:
        known = ", ".join(algorithms())
        raise UserError(f"{error} Algorithms of this package: {known}.") from error
    if not isinstance(found, Recipe):
        raise UserError(
            f"The module {name} has no recipe: define `main(cfg)` in it and decorate it with "
            "@recipe, as vmfer_recipes/td3.py does."
        )
    return found


if __name__ == "__main__":
    main()
