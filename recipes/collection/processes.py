"""Workers in processes on this machine, connected by pipes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import connection, util
from typing import Any

from vmfer_recipes.collection.worker import LostError, remote_worker, reported
from vmfer_recipes.run.interruption import SIGNALS


class Processes:
    """Worker processes.

    Args:
        *parts: the configuration of the run and the exploring policy, on the CPU.
    """

    obstacle = "are starting"  # why workers have not started

    def __init__(self, *parts: Any) -> None:
        self._parts = pickle.dumps(parts)
        self._workers: dict[int, tuple[Any, Any]] = {}  # processes and pipes
        # This runs before Python's own cleanup at exit, which would wait for the workers forever.
        self.close = util.Finalize(self, _close, [self._workers], exitpriority=1)

    def start(self, worker: int) -> None:
        """Starts a worker, for the first time or after it was lost."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._parts, worker), daemon=True)
        process.start()
        theirs.close()  # so that the learner notices when the process ends
        self._workers[worker] = process, ours

    def send(self, worker: int, *request: Any) -> None:
        """Sends a request, weights and a state to a worker that is not busy."""
        with suppress(OSError):  # the worker has died, which `receive` reports
            self._workers[worker][1].send_bytes(pickle.dumps(request))

    def receive(self, timeout: float) -> Iterator[tuple[int, Any]]:
        """Yields the reports of workers: versions after the start, a chunk, or an error."""
        workers: dict[Any, int] = {pipe: worker for worker, (_, pipe) in self._workers.items()}
        ready: list[Any] = connection.wait(workers, timeout)
        for pipe in ready:
            worker = workers[pipe]
            try:
                yield worker, pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                process, _ = self._workers[worker]
                process.join(5)
                yield worker, LostError(f"exit code {process.exitcode}")


def _close(workers: dict[int, tuple[Any, Any]]) -> None:
    for process, _ in workers.values():
        process.kill()
        process.join()


def _serve(pipe: Any, parts: bytes, number: int) -> None:
    """The main function of a worker process, which ends when the learner closes the pipe."""
    for sign in SIGNALS:  # the learner saves, then stops the workers
        signal.signal(sign, signal.SIG_IGN)
    worker = remote_worker(parts, number)
    report = next(worker)
    while True:
        try:
            pipe.send_bytes(pickle.dumps(report))
            request = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # immediately, even if the simulator has running threads
        try:
            report = worker.send(request)
        except Exception as error:
            report = reported(error, number)
