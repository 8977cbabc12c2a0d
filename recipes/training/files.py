"""Files that a crash or a full disk cannot cut in half."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[Any]:
    """A file to write in the place of ``path``: at any moment the old or the whole new is there."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
