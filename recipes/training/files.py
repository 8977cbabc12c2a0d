"""Files that a crash or a full disk cannot leave half written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[Any]:
    """A file that replaces ``path`` when it is complete; until then the old one stays."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
