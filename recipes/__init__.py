"""Recipes: vMFER in several algorithms, and the programs that evaluate and report their runs."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


def _stop_while_starting(number: int, frame: FrameType | None) -> None:
    """Ends a program that still imports modules, some of which turn Ctrl-C into other errors."""
    os.write(2, b"\nStopped before anything was started.\n")
    os._exit(130)


def _is_program() -> bool:
    """Whether this process runs a program of this package, from a shell."""
    script = Path(sys.argv[0] if sys.argv else "")
    is_ours = (
        script.name.startswith("vmfer-")
        or script.parent.resolve() == Path(__file__).parent.resolve()
    )
    is_main = threading.current_thread() is threading.main_thread()
    return is_ours and is_main and multiprocessing.parent_process() is None


def lazy_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported when they are first used.

    ``--help`` of a recipe and its error messages then do not wait for torch.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def end_start() -> None:
    """Lets Ctrl-C raise ``KeyboardInterrupt`` again, after the imports of a program."""
    if signal.getsignal(signal.SIGINT) is _stop_while_starting:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stopping_while_starting() -> Iterator[None]:
    """A context for slow imports, in which Ctrl-C ends a program of this package."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or not _is_program():
        yield
        return
    signal.signal(signal.SIGINT, _stop_while_starting)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if _is_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop_while_starting)
