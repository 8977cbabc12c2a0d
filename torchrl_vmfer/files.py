"""Atomic file writes, safe against a crash or a full disk. Imports no other package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[Any]:
    """Opens a file that replaces ``path`` once it is complete. Until then, the old file remains."""
    # Several processes may write the same file, such as the report of forks.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
