"""The configuration files of this package: the choices of every group."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["CONFIGS", "choices_of"]

CONFIGS = Path(str(files("vmfer_recipes.configs")))


def choices_of(group: str) -> list[str]:
    """The choices of a group that come with this package."""
    return sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))
