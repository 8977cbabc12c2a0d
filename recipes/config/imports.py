"""Classes of the user's own modules, by import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from types import ModuleType
from typing import TypeVar

from vmfer_recipes.config.errors import UserError

__all__ = ["import_class", "import_module", "importing"]

_Base = TypeVar("_Base")


def import_class(path: str, base: type[_Base], key: str) -> type[_Base]:
    """Imports a class such as ``my_package.MySampler``.

    Args:
        path: the module and the name of the class, separated by a dot.
        base: the class that it must be derived from. Nothing else is ever called.
        key: the configuration key that names it, for error messages.
    """
    from torchrl_vmfer import imports  # imported here, so that --help stays fast

    with importing():
        return imports.import_class(path, base, f"{key}={path}")


def import_module(name: str, setting: str) -> ModuleType:
    """Imports a module that is installed or lies in the current directory.

    Args:
        name: the name of the module.
        setting: the setting that names it, for error messages.
    """
    from torchrl_vmfer import imports

    with importing():
        return imports.import_module(name, setting)


@contextmanager
def importing() -> Iterator[None]:
    """A context in which modules of the current directory are found and errors take one line."""
    here, scripts = os.getcwd(), os.path.realpath(str(files("vmfer_recipes")))
    # A script is started with its own directory, whose folders would hide modules of the same name.
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or here) != scripts]
    if here not in sys.path:
        sys.path.append(here)
    try:
        yield
    except ImportError as error:
        raise UserError(str(error)) from error
