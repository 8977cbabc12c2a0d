"""Workers in Ray actors, on this machine or on the nodes of a cluster."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from tensordict.nn import TensorDictModuleBase

from vmfer_recipes.collection.worker import LostError, reported
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.plugins import copy_code

_LOST = (
    "error: The run in {} has ended, as Ray ends it if the cluster's head or the node of this "
    "machine is lost: start the cluster, and run the same command to resume from the last "
    "checkpoint."
)


class RayActors:
    """Ray actors, spread over the nodes of a cluster. The methods are those of ``Processes``.

    Args:
        cfg: the configuration of the run.
        policy: the exploring policy, on the CPU.
    """

    def __init__(self, cfg: Any, policy: TensorDictModuleBase) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy_code(Path(folder))
            try:
                # Ray itself would try for a quarter of an hour.
                host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
                if port.isdigit():
                    address = host.rpartition("/")[2].strip("[]"), int(port)
                    socket.create_connection(address, timeout=10).close()
                ray.init(
                    # A cluster on this machine, unless RAY_ADDRESS names another one.
                    num_cpus=None if "RAY_ADDRESS" in os.environ else cfg.collector.num_workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"working_dir": folder},
                )
            except Exception as error:  # Ray has no specific class
                raise UserError(
                    f"Ray could not be started ({first_line(error)}): check RAY_ADDRESS and the "
                    "cluster's token, or use collector=processes."
                ) from error
        self._parts = ray.put(cloudpickle.dumps((cfg, policy)))
        self._make: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_actor())
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # the workers, by references to their pending results
        # Without a word, Ray ends a process that loses its node or the head of the cluster. This
        # shell reports the end of its input, unless it reads a line before.
        words = ["sh", "-c", 'read -r line || echo "$0" >&2', _LOST.format(cfg.run_dir)]
        self._watch = subprocess.Popen(words, stdin=subprocess.PIPE)
        atexit.register(self.close)

    def start(self, worker: int) -> None:
        """Starts a worker as soon as a node has a CPU for it."""
        self._actors[worker] = self._make.remote()
        self._calls[self._actors[worker].start.remote(self._parts, worker)] = worker

    def send(self, worker: int, *request: Any) -> None:
        """Sends a request, weights and a state to a worker that is not busy."""
        self._calls[self._actors[worker].collect.remote(*request)] = worker

    def receive(self, timeout: float) -> Iterator[tuple[int, Any]]:
        """Yields the report of a worker: versions after the start, a chunk, or an error."""
        for call in ray.wait(list(self._calls), timeout=timeout)[0]:
            worker = self._calls.pop(call)
            try:
                yield worker, ray.get(call)
            except RayTaskError as error:
                yield worker, reported(error.cause, worker)
            except RayError as error:
                yield worker, LostError(type(error).__name__)

    @property
    def obstacle(self) -> str:
        """Why workers have not started."""
        cpus = ray.cluster_resources().get("CPU", 0)
        if cpus < len(self._actors):
            return f"are waiting for CPUs, of which the cluster has {cpus:g}"
        return "are starting"

    def close(self) -> None:
        """Stops the actors and disconnects from the cluster."""
        atexit.unregister(self.close)
        self._watch.communicate(b"\n")
        ray.shutdown()


def _actor() -> type:
    """Makes the class of the actors, which is sent by value so that import errors are reported."""

    class RayWorker:
        def start(self, parts: bytes, number: int) -> Any:
            from vmfer_recipes.collection.worker import remote_worker

            self.worker = remote_worker(parts, number)
            return next(self.worker)

        def collect(self, *request: Any) -> Any:
            return self.worker.send(request)

    return RayWorker
