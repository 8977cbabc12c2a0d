"""Import of user-defined classes by path."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, TypeVar

__all__ = ["import_class", "import_module"]

_Base = TypeVar("_Base")


def import_class(path: str, base: type[_Base], setting: str) -> type[_Base]:
    """Imports a class such as ``my_package.MySampler``.

    Args:
        path: the module and the name of the class, separated by a dot.
        base: the required base class. Anything else is rejected, so that a configuration or a file
            cannot make the program call an arbitrary function.
        setting: the setting that contains the path, for error messages.

    Raises:
        ImportError: if there is no such class.
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
    """Imports a module.

    Args:
        name: the name of the module.
        setting: the setting that contains the name, for error messages.

    Raises:
        ImportError: if the import fails for any reason.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ImportError(
            f"{setting}: the module {name} cannot be imported ({type(error).__name__}: {reason}). "
            "Install it, or run the command from the directory that contains it."
        ) from error
