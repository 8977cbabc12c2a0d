"""The learner's side of data collection: transitions of workers enter its replay buffer."""

from __future__ import annotations

import copy
import sys
import time
from collections import deque
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.compiled.rows import extend
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.collection.processes import ProcessPool
from vmfer_recipes.collection.worker import (
    ENVIRONMENT,
    Chunk,
    EpisodeReturns,
    LostError,
    Request,
    Worker,
    environment_seeds,
    is_whole,
    versions,
)
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import RayCollectorConfig
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, make_environment
from vmfer_recipes.run.interruption import Interruption

_POLL = 1e-3  # seconds between checks for new chunks while there are enough frames
_START = 10.0  # seconds after which workers that have not started are reported


class Collector:
    """Stores at least one transition for every step of a run.

    A step is one frame, whichever environment it comes from. Transitions arrive in chunks, so the
    frame of a step may already be in the buffer.

    Args:
        env: an environment of the run.
        policy: the exploring policy.
        observations: the preprocessing, whose statistics are updated with every transition.
        buffer: the buffer that receives every transition.
        cfg: the configuration of the run.

    Attributes:
        episodes: the returns of the training episodes, for ``train.csv``.
    """

    def __init__(
        self,
        env: Environment,
        policy: TensorDictModuleBase,
        observations: Observations,
        buffer: ActorCriticReplayBuffer,
        cfg: TrainingConfig,
    ) -> None:
        self._env, self._policy, self._cfg = env, policy, cfg
        self._observations, self._buffer = observations, buffer
        self._extend = extend if cfg.fast else TensorDictReplayBuffer.extend
        count = getattr(cfg.collector, "num_workers", 1) * cfg.num_envs
        # Hindsight relabeling must keep the episodes of several environments apart.
        self._has_labels = cfg.replay.has_goals and count > 1
        self._frames = 0  # the number of stored transitions
        self._steps = 0  # the steps of the run so far, at most `_frames`
        self.episodes = EpisodeReturns(count)

    def collect(self) -> None:
        """Waits until the buffer has received one transition for every call so far."""
        raise NotImplementedError

    def store(self, transitions: TensorDictBase, worker: int = 0) -> None:
        """Stores the transitions of a worker."""
        first, count = worker * self._cfg.num_envs, len(transitions)
        if self._has_labels:
            numbers = first + torch.arange(count) % self._cfg.num_envs
            transitions = TensorDict({**transitions, ENVIRONMENT: numbers.unsqueeze(-1)}, [count])
        if self._observations.has_effect:
            self._observations.learn(transitions)
        self._extend(self._buffer, transitions)
        outcome = transitions.get("next")
        rewards, ends = (outcome.get(key).view(-1).tolist() for key in ("reward", "done"))
        for row, end in enumerate(zip(rewards, ends, strict=True)):
            self.episodes.add(*end, first + row % self._cfg.num_envs)
        self._frames += count

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the collector, for a checkpoint."""
        episodes = self.episodes.state_dict()
        return {"frames": self._frames, "steps": self._steps, "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state."""
        self._frames, self._steps = state["frames"], state["steps"]


class SingleCollector(Collector):
    """A collector with one worker, in this process, which steps its environments on demand."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        cfg = self._cfg
        seeds = environment_seeds(cfg.seed, cfg.num_envs)[1:]
        others = [make_environment(cfg.env, seed, cfg.replay.has_goals) for seed in seeds]
        self._worker = Worker([self._env, *others], self._policy, cfg.env.blocking)
        if not others:
            # TorchRL's collector also calls the policy once first, which may draw random numbers.
            with torch.no_grad():
                self._worker.choose()

    def collect(self) -> None:
        """Takes one step in every environment if earlier steps have used all frames."""
        if self._steps == self._frames:
            num_random = self._cfg.init_random_frames - self._frames
            self.store(self._worker.collect(1, num_random, self._frames + 1))
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of every environment, and the position in the round."""
        return super().state_dict() | self._worker.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the round, and within the episodes if their state could be saved."""
        super().load_state_dict(state)
        if self._worker.load_state_dict(state):
            self.episodes.load_state_dict(state["episodes"])

    def reseed(self, seed: int) -> None:
        """Seeds the random generators of all environments. Their episodes continue."""
        self._worker.reseed(seed)


class WorkersCollector(Collector):
    """A collector with workers in other processes, at most ``collector.max_lead`` frames ahead.

    Each worker handles one request at a time. With ``collector.sync=true``, chunks are stored in
    the order of the requests, and the step at which a request is made depends only on earlier
    requests. The speed of the workers therefore has no effect on the results.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        options: Any = self._cfg.collector
        self._options, count = options, options.num_workers
        limit = min(options.max_lead // count, self._cfg.replay.buffer_size) // self._cfg.num_envs
        self._rounds = max(1, min(options.chunk, limit))
        self._pool: Any = None  # a `ProcessPool` or a `RayPool`, once it has started
        self._idle = deque(range(count))
        self._busy: dict[int, tuple[Request, list[np.ndarray]]] = {}  # in the order of requests
        self._arrived: dict[int, Chunk] = {}
        self._started: set[int] = set()
        self._new = set(range(count))  # workers that have no environments yet
        self._held: dict[int, int] = {}  # the version of the weights that each worker has
        self._numbers = [0] * count  # the number of each worker's next chunk
        self._states: list[Any] = [None] * count  # the workers' states after the last stored chunk
        self._weights: list[np.ndarray] = []
        self._version = 0
        self._reported: set[str] = set()
        self._loss = ""

    def collect(self) -> None:
        """Waits for the workers if the frame of this step has not arrived."""
        if self._pool is None:
            self._start()
        self._steps += 1
        is_due = not self._options.sync and time.monotonic() - self._polled > _POLL
        if self._frames >= self._steps and is_due:
            self._receive(0)
        self._latest = time.monotonic()
        while self._frames < self._steps:
            self._submit()
            self._receive(0.1)
            silence = time.monotonic() - self._latest
            if Interruption.came and silence > 5:  # the run is about to save and stop
                return
            if silence > self._options.patience:
                cause = self._loss or "no environment has completed its steps"
                raise UserError(
                    f"No frames have arrived for collector.patience={self._options.patience:g} "
                    f"seconds ({self._missing() or cause}): raise it, or run the same command to "
                    "resume from the last checkpoint."
                )
        self._submit()

    def close(self) -> None:
        """Stops the workers."""
        if self._pool is not None:
            self._pool.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the counters and, with ``collector.sync=true``, what future chunks depend on."""
        state = super().state_dict() | {"numbers": list(self._numbers)}
        if self._options.sync:
            state |= {"idle": list(self._idle), "states": list(self._states)}
            state |= {"version": self._version, "weights": _tensors(self._weights)}
            state["busy"] = [
                [worker, asdict(request), _tensors(weights)]
                for worker, (request, weights) in self._busy.items()
            ]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state before the workers start.

        Without ``collector.sync=true``, the workers start new episodes.
        """
        super().load_state_dict(state)
        self._numbers = list(state["numbers"])
        if self._options.sync:
            self._idle, self._states = deque(state["idle"]), list(state["states"])
            self._version, self._weights = state["version"], _arrays(state["weights"])
            self._busy = {
                worker: (Request(**request), _arrays(weights))
                for worker, request, weights in state["busy"]
            }
            self.episodes.load_state_dict(state["episodes"])

    def _start(self) -> None:
        policy = copy.deepcopy(self._policy).to("cpu")
        for part in policy.modules():
            if isinstance(part, Observations):
                part.device = torch.device("cpu")
        pool: Any = ProcessPool
        if isinstance(self._options, RayCollectorConfig):  # Ray is optional
            from vmfer_recipes.collection.ray_workers import RayPool as pool  # noqa: N813
        self._pool = pool(self._cfg, policy, len(self._numbers))
        self._polled = time.monotonic()
        self._reminder = self._polled + _START

    # --- Requests.

    def _submit(self) -> None:
        """Makes requests to idle workers, as far as ``max_lead`` allows."""
        cfg = self._cfg
        while (worker := self._next_idle()) is not None:
            requested = sum(request.rounds for request, _ in self._busy.values())
            ahead = self._frames + requested * cfg.num_envs
            rounds = min(self._rounds, -(-(cfg.total_frames - ahead) // cfg.num_envs))
            is_within = ahead + rounds * cfg.num_envs <= self._steps + self._options.max_lead
            if rounds <= 0 or not (is_within or ahead < self._steps):
                return
            weights, number = self._current_weights(), self._numbers[worker]
            num_random = cfg.init_random_frames - ahead
            request = Request(number, ahead + 1, rounds, num_random, self._version)
            self._idle.remove(worker)
            self._busy[worker] = request, weights
            self._numbers[worker] += 1
            if worker in self._started:
                self._send(worker)

    def _next_idle(self) -> int | None:
        is_free = self._started.__contains__
        return next(iter(self._idle) if self._options.sync else filter(is_free, self._idle), None)

    def _send(self, worker: int) -> None:
        """Sends its request to a worker, or sends it again after the worker was lost."""
        (request, weights), state = self._busy[worker], self._states[worker]
        if worker in self._new:
            self._new.discard(worker)
            request = replace(request, is_new=True, state=state)
            if not is_whole(state):
                first = worker * self._cfg.num_envs
                self.episodes.restart(range(first, first + self._cfg.num_envs))
        is_held = not request.is_new and self._held[worker] == request.version
        self._held[worker] = request.version
        self._pool.submit(worker, request, None if is_held else weights)

    def _current_weights(self) -> list[np.ndarray]:
        weights = [each.detach().cpu().numpy() for each in self._policy.state_dict().values()]
        if not self._weights or not all(map(np.array_equal, weights, self._weights)):
            self._weights = [weight.copy() for weight in weights]
            self._version += 1
        return self._weights

    # --- Reports.

    def _receive(self, timeout: float) -> None:
        for worker, report in self._pool.wait(timeout):
            if isinstance(report, Chunk):
                self._arrived[worker] = report
            elif isinstance(report, LostError):
                self._lose(worker, str(report))
            elif isinstance(report, Exception):
                raise report
            else:
                self._welcome(worker, report)
        if self._options.sync:  # only what this step needs, in the order of the requests
            while self._frames < self._steps and next(iter(self._busy)) in self._arrived:
                self._take(next(iter(self._busy)))
        else:
            for worker in list(self._arrived):
                self._take(worker)
        self._polled = time.monotonic()
        if len(self._started) < len(self._numbers) and self._polled > self._reminder:
            self._reminder = self._polled + _START
            self._report(f"{self._missing()}.")

    def _take(self, worker: int) -> None:
        self._latest, chunk = time.monotonic(), self._arrived.pop(worker)
        self._busy.pop(worker)
        self._idle.append(worker)
        self._states[worker] = chunk.state
        columns = {key: torch.tensor(column) for key, column in chunk.columns.items()}
        self.store(TensorDict(columns, [len(columns["action"])]), worker)

    def _welcome(self, worker: int, theirs: dict[str, str]) -> None:
        self._started.add(worker)
        for name, version in versions().items():
            if theirs.get(name, version) != version:
                self._report(f"Worker {worker} has {name} {theirs[name]}, the learner {version}.")
        if worker in self._busy:
            self._send(worker)

    def _lose(self, worker: int, reason: str) -> None:
        self._started.discard(worker)
        self._new.add(worker)
        self._loss = f"worker {worker} was lost: {reason}"
        print(f"Worker {worker} was lost ({reason}) and is restarted.", file=sys.stderr)
        if not self._options.sync and worker in self._busy:
            del self._busy[worker]
            self._idle.append(worker)

    def _missing(self) -> str:
        count, started = len(self._numbers), len(self._started)
        if started == count:
            return ""
        return f"{count - started} of {count} workers {self._pool.obstacle()}"

    def _report(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            print(line, file=sys.stderr)


def _tensors(arrays: list[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def _arrays(tensors: list[Tensor]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def make_collector(*parts: Any) -> Collector:
    """Makes the collector selected by ``collector=`` from the arguments of :class:`Collector`."""
    return (SingleCollector if parts[-1].collector.is_single else WorkersCollector)(*parts)
