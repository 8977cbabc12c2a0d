"""Import of user-defined classes by path."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, TypeVar

_Base = TypeVar("_Base")


def import_class(path: str, base: type[_Base], setting: str) -> type[_Base]:
    """Imports a class such as ``my_package.MySampler``, which ``setting`` contains.

    Anything not derived from the base class is an ``ImportError``, so that a configuration or a
    file cannot make the program call an arbitrary function.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ImportError(f"{setting} must name a module and a class, such as my_package.MyClass.")
    found: Any = getattr(import_module(module, setting), name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "has no such name" if found is None else f"defines it as a {type(found).__name__}"
        if isinstance(found, type):
            what = "derives it from another class"
        raise ImportError(
            f"{setting} must be a class derived from {base.__name__}, but {module} {what}."
        )
    return found


def import_module(name: str, setting: str) -> ModuleType:
    """Imports a module, which ``setting`` names. Any failure is an ``ImportError``."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ImportError(
            f"{setting}: the module {name} cannot be imported ({type(error).__name__}: {reason}). "
            "Install it, or run the command from the directory that contains it."
        ) from error
