"""Atomic file writes, safe against a crash or a full disk, and the names of checkpoints."""

from __future__ import annotations

from pathlib import Path

from torchrl_vmfer.files import replacing

__all__ = ["checkpoint_files", "replacing", "step_of"]


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, without copies that were given another name."""
    return [*folder.glob(f"step_{'[0-9]' * 12}.pt")]


def step_of(file: Path) -> int:
    """The step of a checkpoint, read from its name."""
    return int(file.stem.removeprefix("step_"))
