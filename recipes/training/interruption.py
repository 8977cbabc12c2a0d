"""Ctrl-C and SIGTERM wait until a run has saved its state."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Interruption", "StoppedError", "leaving_ctrl_c_to_the_runs"]


class Interruption:
    """A context in which SIGINT and SIGTERM are noted, and which ends the program after one.

    Its exit code is then 130 or 143. Further signals change nothing.

    Attributes:
        signal: the signal that came, or ``None``.
        came: whether one came in the last context of this process.
    """

    came = False

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        Interruption.came = False
        # Python allows it there only; a run in another thread goes without.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self.signal is not None and error[0] is None:
            sys.exit(128 + self.signal)  # with signals still held back until the very end
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            Interruption.came = True
            # Not `print`: the signal may have come in the middle of one.
            os.write(2, f"\n{self.signal.name}: the run stops after this step.\n".encode())


class StoppedError(Exception):
    """A run of a worker has stopped. Unlike ``SystemExit`` it leaves the other workers alone."""


@contextmanager
def leaving_ctrl_c_to_the_runs() -> Iterator[None]:
    """Within it, processes are started that heed Ctrl-C only while they are at work on a run.

    Otherwise one that dies of it, be it idle, makes joblib kill those that save.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
