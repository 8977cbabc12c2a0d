"""Workers in Ray actors, on this machine or on the nodes of a cluster."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from tensordict.nn import TensorDictModuleBase

import torchrl_vmfer
import vmfer_recipes
from vmfer_recipes.collection.worker import LostError, Request, reported
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig


class RayPool:
    """Ray actors, spread over the nodes of a cluster. Ray restarts those that are lost.

    Args:
        cfg: the configuration of the run.
        policy: the exploring policy, on the CPU.
        count: the number of workers.
    """

    def __init__(self, cfg: TrainingConfig, policy: TensorDictModuleBase, count: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _copy_code(Path(folder))
            try:
                ray.init(
                    # A cluster on this machine, unless RAY_ADDRESS names another one.
                    num_cpus=None if "RAY_ADDRESS" in os.environ else count,
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
        self._weights: tuple[int, Any] = (-1, None)  # the last version
        actor: Any = ray.remote(num_cpus=1, max_restarts=-1, scheduling_strategy="SPREAD")(_actor())
        self._actors = [actor.remote() for _ in range(count)]
        self._calls: dict[Any, int] = {}  # the workers, by references to their pending results
        for worker in range(count):
            self._start(worker)

    def _start(self, worker: int) -> None:
        # Ray retries without a limit, because the actor may have to wait for a node.
        start = self._actors[worker].start.options(max_task_retries=-1)
        self._calls[start.remote(self._parts, worker)] = worker

    def wait(self, timeout: float) -> Iterator[tuple[int, Any]]:
        """Yields the reports of workers: versions after the start, a chunk, or an error."""
        calls = list(self._calls)
        ready, _ = ray.wait(calls, timeout=timeout)
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        for call in ready:
            worker = self._calls.pop(call)
            try:
                report = ray.get(call)
            except RayTaskError as error:
                report = reported(error.cause, worker)
            except RayError as error:
                report = LostError(type(error).__name__)
            if isinstance(report, LostError):
                self._start(worker)
            yield worker, report

    def submit(self, worker: int, request: Request, weights: Any) -> None:
        """Sends a request to a worker that is not busy."""
        if weights is not None:
            if self._weights[0] != request.version:
                self._weights = request.version, ray.put(weights)
            weights = self._weights[1]
        call = self._actors[worker].collect.remote(request, weights)
        self._calls[call] = worker

    def obstacle(self) -> str:
        """Says why workers have not started."""
        cpus = ray.cluster_resources().get("CPU", 0)
        if cpus < len(self._actors):
            return f"are waiting for CPUs, of which the cluster has {cpus:g}"
        return "are starting"

    def close(self) -> None:
        """Stops the actors and disconnects from the cluster."""
        ray.shutdown()


def _actor() -> type:
    """Makes the class of the actors, which is sent by value so that import errors are reported."""

    class RayWorker:
        worker: Any = None

        def start(self, parts: bytes, number: int) -> dict[str, str]:
            import pickle

            from vmfer_recipes.collection.worker import RemoteWorker, versions

            cfg, policy = pickle.loads(parts)
            self.worker = RemoteWorker(cfg, policy, number)
            return versions()

        def collect(self, *request: Any) -> Any:
            if self.worker is None:
                from vmfer_recipes.collection.worker import LostError

                return LostError("restarted while it was idle")
            return self.worker.collect(*request)

    return RayWorker


def _copy_code(folder: Path) -> None:
    """Copies this package and the user's imported modules, for nodes that do not have them."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    installed += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    modules = {"torchrl_vmfer": torchrl_vmfer, "vmfer_recipes": vmfer_recipes}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name == "__main__" or file is None:
            continue
        if not any(Path(file).is_relative_to(path) for path in installed):
            modules.setdefault(name, module)
    for name, module in modules.items():
        source = Path(str(module.__file__))
        if source.name == "__init__.py":
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(source.parent, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder)
