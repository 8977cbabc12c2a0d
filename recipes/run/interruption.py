"""Handling of Ctrl-C, SIGTERM and SIGUSR2: a run saves its state before it stops."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_PATIENCE = 10.0  # seconds
# Slurm sends the last one before the time limit of a job.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class SignalError(Exception):
    """Raised between two steps of a run or an evaluation if a signal arrived."""


class Interruption:
    """A context that records :data:`SIGNALS` and exits the program at its end if one arrived.

    The exit code is then 130, 143 or 140. If another handler of SIGUSR2 was installed, such as that
    of a Slurm launcher, which queues the job again, it is called instead. Further signals have no
    effect, unless they arrive more than ten seconds later: the step does not seem to end, so
    ``KeyboardInterrupt`` is raised.
    """

    came = False  # whether a signal arrived in the last context of this process

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._time = 0.0

    def __enter__(self) -> Interruption:
        Interruption.came = False
        # Python allows this only in the main thread; runs in other threads do not handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self.signal is not None and error[0] is None:
            handler = self._before[self.signal]
            if self.signal == signal.SIGUSR2 and callable(handler):
                handler(self.signal, None)
            sys.exit(128 + self.signal)  # while signals are still blocked
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self._time = time.monotonic()  # first: another signal may interrupt this method
            self.signal = signal.Signals(number)
            Interruption.came = True
            # Not `print`: the signal may have interrupted another `print`.
            os.write(2, f"\n{self.signal.name}: the run stops after this step.\n".encode())
        elif time.monotonic() - self._time > _PATIENCE:
            os.write(2, b"\nThe run stops now, without saving this step.\n")
            raise KeyboardInterrupt


class StoppedError(Exception):
    """Raised when the run of a worker stops. Unlike ``SystemExit``, does not end other workers."""


@contextmanager
def leaving_ctrl_c_to_the_runs() -> Iterator[None]:
    """A context in which new processes ignore Ctrl-C except during a run, and SIGTERM acts like it.

    Otherwise Ctrl-C kills an idle process, and joblib then kills the processes that are saving;
    and SIGTERM ends this process only, which leaves the others behind.
    """
    came = False

    def send(sign: signal.Signals) -> None:
        for process in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(process.pid, sign)  # type: ignore[arg-type]  # it was started

    def stop_runs(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        send(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, stop_runs)
    try:
        yield
    except StoppedError:
        raise
    except Exception:
        if came:  # the signal may also have killed an idle process, and joblib waits for it
            send(signal.SIGKILL)
            raise StoppedError from None
        raise
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
