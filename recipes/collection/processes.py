"""Workers in processes on this machine, connected by pipes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import connection, util
from typing import Any

from tensordict.nn import TensorDictModuleBase

from vmfer_recipes.collection.worker import LostError, RemoteWorker, reported, versions
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.interruption import SIGNALS


class ProcessPool:
    """Worker processes.

    Args:
        cfg: the configuration of the run.
        policy: the exploring policy, on the CPU.
        count: the number of workers.
    """

    def __init__(self, cfg: TrainingConfig, policy: TensorDictModuleBase, count: int) -> None:
        self._parts = pickle.dumps((cfg, policy))
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        for worker in range(count):
            self._start(worker)
        # This runs before Python's own cleanup at exit, which would wait for the workers forever.
        self.close = util.Finalize(self, _close, [self._processes, self._pipes], exitpriority=1)

    def _start(self, worker: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes[worker], theirs = context.Pipe()
        arguments = (theirs, self._parts, worker)
        self._processes[worker] = context.Process(target=_serve, args=arguments, daemon=True)
        self._processes[worker].start()
        theirs.close()  # so that the learner notices when the process ends

    def wait(self, timeout: float) -> Iterator[tuple[int, Any]]:
        """Yields the reports of workers: versions after the start, a chunk, or an error."""
        ready = connection.wait(self._pipes.values(), timeout)
        for worker, pipe in list(self._pipes.items()):
            if pipe in ready:
                try:
                    yield worker, pickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    process = self._processes[worker]
                    process.join(5)
                    self._start(worker)
                    yield worker, LostError(f"exit code {process.exitcode}")

    def submit(self, worker: int, *request: Any) -> None:
        """Sends a request to a worker that is not busy."""
        with suppress(OSError):  # the worker has died, which `wait` reports
            self._pipes[worker].send_bytes(pickle.dumps(request))

    def obstacle(self) -> str:
        """Says why workers have not started."""
        return "are starting"


def _close(processes: dict[int, Any], pipes: dict[int, Any]) -> None:
    for pipe in pipes.values():
        pipe.close()  # the worker ends after its current request
    end = time.monotonic() + 2
    for process in processes.values():
        process.join(max(end - time.monotonic(), 0))
        process.kill()
        process.join()


def _serve(pipe: Any, parts: bytes, number: int) -> None:
    """The main function of a worker process, which ends when the learner closes the pipe."""
    for sign in SIGNALS:  # the learner saves, then stops the workers
        signal.signal(sign, signal.SIG_IGN)
    worker: RemoteWorker | None = None
    request: Any = ()
    report: Any
    while True:
        try:
            if worker is None:
                cfg, policy = pickle.loads(parts)
                worker, report = RemoteWorker(cfg, policy, number), versions()
            else:
                report = worker.collect(*request)
        except Exception as error:
            report = reported(error, number)
        try:
            pipe.send_bytes(pickle.dumps(report))
            request = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # immediately, even if the simulator has running threads
