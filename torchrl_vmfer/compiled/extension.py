"""The extension module for this processor."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

__all__ = ["functions", "modules"]


@cache
def modules() -> dict[str, Any]:
    """The extension modules that were built and that this processor can run, best first."""
    portable = _imported("portable")
    if portable is None:
        return {}
    found = {name: _imported(name) for name in portable.processor()}
    return {name: module for name, module in found.items() if module is not None}


def functions() -> Any:
    """The extension module, or ``None`` if the package was installed without a C compiler."""
    return next(iter(modules().values()), None)


def _imported(name: str) -> Any:
    try:
        module: ModuleType = importlib.import_module(f"torchrl_vmfer.compiled._{name}")
    except ImportError:
        return None
    return module
