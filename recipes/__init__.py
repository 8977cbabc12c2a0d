"""Recipes: vMFER in several algorithms, and the programs that evaluate and report their runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


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


# Programs replace it once they have started; see `program` in config/launch.py.
if _is_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop_while_starting)
