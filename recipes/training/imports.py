"""Classes of the user's own modules, by import path."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any, TypeVar

from vmfer_recipes.training.errors import UserError, first_line

__all__ = ["import_class", "import_module"]

_Base = TypeVar("_Base")


def import_class(path: str, base: type[_Base], key: str) -> type[_Base]:
    """Imports a class such as ``my_package.MySampler``.

    Args:
        path: the module and the name of the class, separated by a dot.
        base: the class that it must be derived from. Nothing else is ever called, so that a
            configuration cannot name an arbitrary function to execute.
        key: the configuration key that names it, for error messages.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise UserError(f"{key}={path} must name a module and a class, as my_package.MyClass does.")
    found: Any = getattr(import_module(module, f"{key}={path}"), name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "has no such name" if found is None else f"defines it as {found!r}"
        raise UserError(
            f"{key}={path} must be a class derived from {base.__name__}, but {module} {what}."
        )
    return found


def import_module(name: str, setting: str) -> ModuleType:
    """Imports a module that is installed or lies in the current directory.

    Args:
        name: the name of the module.
        setting: the setting that names it, for error messages.
    """
    if os.getcwd() not in sys.path:  # a script is started with its own directory only
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UserError(
            f"{setting}: the module {name} cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}). Install it, or run the command from the directory that "
            "contains it."
        ) from error
