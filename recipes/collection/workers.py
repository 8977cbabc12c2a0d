"""Data collection in several processes that write directly to the replay buffer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import weakref
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl import torchrl_logger
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.collection import _upstream
from vmfer_recipes.collection.collectors import StepCount, kept
from vmfer_recipes.collection.direct import DirectCollector
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.run.interruption import Interruption

__all__ = ["Workers"]

_FOREVER = 2**62


class Workers(StepCount):
    """Worker processes, each with its own environment.

    A step of the run is one frame, collected by any process: the learner waits while there are
    fewer frames than steps. The weights of the policy are in shared memory, so that workers act
    with the newest weights.

    Args:
        policy: the exploring policy.
        buffer: receives every transition.
        cfg: the configuration of the run.
    """

    def __init__(
        self, policy: TensorDictModuleBase, buffer: ActorCriticReplayBuffer, cfg: TrainingConfig
    ) -> None:
        self._policy = policy
        self._buffer = buffer
        self._cfg = cfg
        self._options: Any = cfg.collector
        self._workers: Any = None  # TorchRL's collector, once it has started

    def collect(self) -> None:
        """Waits for the workers if they are behind."""
        if self._workers is None:
            self._start()
        self._steps += 1
        try:
            self._await_frames()
        except (UserError, RuntimeError, OSError, ValueError) as error:
            time.sleep(0.1)  # a signal sent to all processes may not have arrived here yet
            if Interruption.came:  # the run is about to save and stop
                return
            if isinstance(error, UserError):
                raise
            raise self._death(first_line(error)) from error  # TorchRL raises many types of errors

    def close(self) -> None:
        """Ends the processes."""
        if self._workers is not None:
            self._close()

    def _await_frames(self) -> None:
        buffer, options = self._buffer, self._options
        is_sync = options.kind == "multi_sync"
        if not is_sync:
            buffer.limit.value = min(self._steps + options.max_lead, self._cfg.total_frames)
        self._check_alive()
        while buffer.write_count < self._steps:
            if is_sync:
                next(self._iterator)
            else:
                time.sleep(1e-4)
                self._check_alive()

    def _check_alive(self) -> None:
        for number, process in enumerate(self._workers.procs):
            if not process.is_alive():
                raise self._death(f"worker {number}, exit code {process.exitcode}")

    def _death(self, sign: str) -> UserError:
        self._close()
        return UserError(
            f"A worker of collector={self._cfg.collector.kind} has died ({sign}): run the same "
            "command to resume from the last checkpoint."
        )

    def _start(self) -> None:
        """Starts the processes, after a checkpoint is loaded, so that they share its data."""
        cfg, buffer = self._cfg, self._buffer
        make = partial(make_environment, cfg.env, goals=False)
        if not buffer.storage.initialized:
            example = kept(make(seed=0).fake_tensordict())
            buffer.extend(example.unsqueeze(0))
            buffer.empty()
        buffer.share()
        is_sync = cfg.collector.kind == "multi_sync"
        # The number of frames currently allowed: workers wait once it is reached.
        buffer.limit = multiprocessing.Value("q", _FOREVER if is_sync else 0)
        count = self._options.num_workers
        try:
            self._workers = (MultiSyncCollector if is_sync else MultiAsyncCollector)(
                [partial(make, seed=number) for number in range(count)],
                self._policy,
                frames_per_batch=count if is_sync else 1,  # one frame per worker
                total_frames=-1,
                init_random_frames=cfg.init_random_frames,
                replay_buffer=buffer,
                collector_class=_WorkerClass(DirectCollector if cfg.fast else Collector),
                postproc=kept,
                init_fn=partial(_set_up, cfg.fast),
                num_threads=cfg.threads,
                num_sub_threads=1,
                auto_register_policy_transforms=False,
            )
        except RuntimeError as error:
            raise UserError(
                f"The {count} workers of collector={cfg.collector.kind} could not be started "
                f"({first_line(error)}): try again. If memory or /dev/shm is full, free some of it "
                "or use collector=single."
            ) from error
        self._close = weakref.finalize(self, _close, self._workers, buffer.limit, cfg.threads)
        # A worker that died while it was writing keeps the lock.
        buffer.process_lock.while_waiting = self._check_alive
        # Random, so that a resumed run does not repeat its first episodes.
        self._workers.set_seed(int(torch.randint(2**31, ())))
        if is_sync:
            self._iterator = iter(self._workers)
        else:
            self._workers.start()


def _close(workers: MultiSyncCollector | MultiAsyncCollector, limit: Any, threads: int) -> None:
    for scheme in _upstream.weight_sync_schemes(workers):
        scheme.shutdown()  # TorchRL shuts it down at exit, where it hangs
    limit.value = _FOREVER  # releases waiting workers
    workers.shutdown(raise_on_error=False)
    torch.set_num_threads(threads)


# --- In the worker processes.


def _set_up(is_fast: bool) -> None:
    torchrl_logger.setLevel("WARNING")
    torch.set_flush_denormal(is_fast)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the learner saves, then ends them


class _WorkerClass:
    """Creates the collector class in the worker process, because the class cannot be pickled.

    TorchRL sets attributes of the class before it makes a collector; these are copied.

    Args:
        collector: the base class of the workers' collectors.
    """

    def __init__(self, collector: type[Collector]) -> None:
        self.base = collector

    def __call__(self, *args: Any, **kwargs: Any) -> Collector:
        return type("Worker", (_Worker, self.base), dict(vars(self)))(*args, **kwargs)


class _Worker(Collector if TYPE_CHECKING else object):  # type: ignore[misc]
    """Makes a collector wait when it is too far ahead of the learner.

    SIGTERM does not end it while it writes a row, which the learner may be about to save.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_told_to_end = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.replay_buffer.process_lock.is_mine():
            self._is_told_to_end = True
        else:
            os._exit(128 + number)

    def rollout(self) -> TensorDictBase:
        """Takes one environment step."""
        if self._is_told_to_end:
            os._exit(128 + signal.SIGTERM)
        buffer: Any = self.replay_buffer
        while buffer.write_count >= buffer.limit.value:
            time.sleep(1e-3)
            learner = multiprocessing.parent_process()
            if learner is None or not learner.is_alive():
                raise EOFError("The learner has ended.")  # TorchRL's convention
        try:
            return super().rollout()
        except UserError as error:  # the learner sees only the exit code
            print(f"error: At step {buffer.write_count + 1}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
