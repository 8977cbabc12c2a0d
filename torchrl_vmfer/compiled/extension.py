"""The extension module for this processor."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import torch

__all__ = ["functions", "modules"]

_MODULES = ("avx512", "avx2", "portable")  # by instruction set, best first


@cache
def modules() -> dict[str, Any]:
    """The extension modules that were built and that this processor can run, best first."""
    found = {name: _imported(name) for name in _MODULES[_MODULES.index(_instruction_set()) :]}
    return {name: module for name, module in found.items() if module is not None}


def _instruction_set() -> str:
    name = torch.backends.cpu.get_cpu_capability().lower()  # for example, "AVX2" or "NO AVX"
    return name if name in _MODULES else "portable"


def functions() -> Any:
    """The extension module, or ``None`` if the package was installed without a C compiler."""
    return next(iter(modules().values()), None)


def _imported(name: str) -> Any:
    try:
        module: ModuleType = importlib.import_module(f"torchrl_vmfer.compiled._{name}")
    except ImportError:
        return None
    return module
