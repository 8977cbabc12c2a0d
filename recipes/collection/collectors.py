"""The learner's side of data collection: transitions of workers enter its replay buffer."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import TensorDictReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.compiled.rows import extend
from vmfer_recipes.agent.observations import Observations, on_cpu
from vmfer_recipes.agent.replay import ENVIRONMENT
from vmfer_recipes.collection.processes import Processes
from vmfer_recipes.collection.worker import (
    Chunk,
    EpisodeReturns,
    LostError,
    Request,
    Worker,
    versions,
)
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import RayCollectorConfig
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, make_environment
from vmfer_recipes.environments.state import derived_seed, reseed_environment
from vmfer_recipes.run.interruption import Interruption

_POLL = 1e-3  # seconds between checks for new chunks while there are enough frames
_START = 10.0  # seconds between checks for workers that have not started, which are reported


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
        # Hindsight relabeling and n-step returns keep the episodes of several environments apart.
        self._has_labels = (cfg.replay.has_goals or cfg.n_step > 1) and count > 1
        self._frames = 0  # the number of stored transitions
        self._steps = 0  # the steps of the run so far, at most `_frames`
        self.episodes = EpisodeReturns()

    def store(self, transitions: TensorDictBase, worker: int = 0) -> None:
        """Stores the transitions of a worker."""
        first, count = worker * self._cfg.num_envs, len(transitions)
        if self._has_labels:
            numbers = first + torch.arange(count) % self._cfg.num_envs
            transitions = TensorDict({**transitions, ENVIRONMENT: numbers.unsqueeze(-1)}, [count])
        if self._observations.has_effect:
            self._observations.learn(transitions)
        if self._observations.rewards is not None:
            self._observations.rewards.learn(transitions, first, self._cfg.num_envs)
        self._extend(self._buffer, transitions)
        self._frames += count

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the collector, for a checkpoint."""
        return {"frames": self._frames, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state."""
        self._frames, self._steps = state["frames"], state["steps"]


class SingleCollector(Collector):
    """A collector with one worker, in this process, which steps its environments on demand."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        cfg = self._cfg
        seeds = self._seeds(cfg.seed)[1:]
        others = [make_environment(cfg.env, seed, cfg.replay.has_goals) for seed in seeds]
        self._envs = [self._env, *others]
        self._worker = Worker(cfg, self._policy, self._envs)
        self.episodes = self._worker.episodes
        if not others:
            # TorchRL's collector also calls the policy once first, which may draw random numbers.
            with torch.no_grad():
                self._worker.choose()

    def collect(self) -> None:
        """Takes one step in every environment if earlier steps have used all frames."""
        if self._steps == self._frames:
            self.store(self._worker.collect(1, self._frames + 1))
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of every environment, and the position in the round."""
        return super().state_dict() | self._worker.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the round, and within the episodes if their state could be saved."""
        super().load_state_dict(state)
        self._worker.load_state_dict(state)

    def reseed(self, seed: int) -> None:
        """Seeds the random generators of all environments. Their episodes continue."""
        for env, number in zip(self._envs, self._seeds(seed), strict=True):
            reseed_environment(env, number)

    def _seeds(self, seed: int) -> list[int]:
        return [seed, *(derived_seed(seed, number) for number in range(1, self._cfg.num_envs))]


class WorkersCollector(Collector):
    """A collector with workers in other processes, at most ``collector.max_lead`` frames ahead.

    Each worker handles one request at a time. With ``collector.sync=true``, requests are made to
    the workers in turn, chunks are stored in the order of the requests, and the step at which a
    request is made depends only on earlier requests. The speed of the workers therefore has no
    effect on the results.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        options: Any = self._cfg.collector
        self._options, count = options, options.num_workers
        limit = min(options.max_lead // count, self._cfg.replay.buffer_size) // self._cfg.num_envs
        self._rounds = max(1, min(options.chunk, limit))
        self._transport: Any = None  # `Processes` or `RayActors`, once the workers are started
        self._started: set[int] = set()
        self._busy: dict[int, tuple[Request, list[np.ndarray]]] = {}  # in the order of requests
        self._arrived: dict[int, Chunk] = {}
        self._numbers = [0] * count  # the number of each worker's next chunk
        self._states: list[Any] = [None] * count  # the workers' states after the last stored chunk
        self._said = ""  # about workers that have not started
        self._cause = "no environment has completed its steps"  # if no frames arrive
        self._polled = 0.0  # the time of the last check for chunks

    def collect(self) -> None:
        """Waits for the workers if the frame of this step has not arrived."""
        if self._transport is None:
            self._start()
        self._steps += 1
        begin = time.monotonic()
        if begin > self._polled + _POLL:
            self._receive(0)
        while True:
            self._store_arrived()
            self._submit()
            silence = time.monotonic() - begin
            # After a signal, the run saves and stops after this step.
            if self._frames >= self._steps or (Interruption.came and silence > 5):
                return
            if silence > self._options.patience:
                raise UserError(
                    f"No frames have arrived for collector.patience={self._options.patience:g} "
                    f"seconds ({self._missing() or self._cause}): raise it, or run the same "
                    "command to resume from the last checkpoint."
                )
            self._receive(0.1)

    def close(self) -> None:
        """Stops the workers."""
        if self._transport is not None:
            self._transport.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the counters and, with ``collector.sync=true``, what future chunks depend on."""
        state = super().state_dict() | {"numbers": list(self._numbers)}
        state["episodes"] = self.episodes.state_dict()
        if self._options.sync:
            state["states"] = list(self._states)
            state["busy"] = [
                [worker, list(request), [torch.from_numpy(weight) for weight in weights]]
                for worker, (request, weights) in self._busy.items()
            ]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state before the workers start.

        Without ``collector.sync=true``, the workers start new episodes.
        """
        super().load_state_dict(state)
        self._numbers = list(state["numbers"])
        self.episodes.load_state_dict(state["episodes"])
        if self._options.sync:
            self._states = list(state["states"])
            self._busy = {
                worker: (Request(*request), [weight.numpy() for weight in weights])
                for worker, request, weights in state["busy"]
            }

    def _start(self) -> None:
        transport: Any = Processes
        if isinstance(self._options, RayCollectorConfig):  # Ray is optional
            from vmfer_recipes.collection.ray_workers import RayActors as transport  # noqa: N813
        self._transport = transport(self._cfg, on_cpu(self._policy))
        for worker in range(self._options.num_workers):
            self._transport.start(worker)
        self._reminder = time.monotonic() + _START

    def _submit(self) -> None:
        """Makes requests to idle workers, as far as ``max_lead`` allows."""
        cfg, options = self._cfg, self._options
        known = range(options.num_workers) if options.sync else self._started
        while idle := [worker for worker in known if worker not in self._busy]:
            requested = sum(request.rounds for request, _ in self._busy.values())
            ahead = self._frames + requested * cfg.num_envs
            rounds = min(self._rounds, -(-(cfg.total_frames - ahead) // cfg.num_envs))
            is_within = ahead + rounds * cfg.num_envs <= self._steps + options.max_lead
            if rounds <= 0 or not (is_within or ahead < self._steps):
                return
            worker = min(idle, key=self._numbers.__getitem__)
            request = Request(self._numbers[worker], ahead + 1, rounds)
            weights = self._policy.state_dict().values()
            self._busy[worker] = request, [each.detach().cpu().numpy().copy() for each in weights]
            self._numbers[worker] += 1
            if worker in self._started:
                self._transport.send(worker, *self._busy[worker], self._states[worker])

    def _receive(self, timeout: float) -> None:
        for worker, report in self._transport.receive(timeout):
            if isinstance(report, Chunk):
                self._arrived[worker] = report
            elif isinstance(report, LostError):
                self._restart(worker, report)
            elif isinstance(report, Exception):
                raise report
            else:
                self._welcome(worker, report)
        self._polled = time.monotonic()
        if self._polled > self._reminder:
            self._reminder = self._polled + _START
            said, self._said = self._said, self._missing()
            if self._said not in ("", said):
                print(f"{self._said}.", file=sys.stderr)

    def _store_arrived(self) -> None:
        """Stores chunks: with ``collector.sync=true`` in order, and only what this step needs."""
        for worker in list(self._busy):
            has_arrived = worker in self._arrived
            if self._options.sync and not (has_arrived and self._frames < self._steps):
                return
            if has_arrived:
                chunk = self._arrived.pop(worker)
                del self._busy[worker]
                self._states[worker] = chunk.state
                self.episodes.ended += chunk.episodes
                self.episodes.log(chunk.logged)
                columns = {key: torch.tensor(column) for key, column in chunk.columns.items()}
                self.store(TensorDict(columns, [len(columns["action"])]), worker)

    def _welcome(self, worker: int, theirs: dict[str, str]) -> None:
        self._started.add(worker)
        for name, version in versions().items():
            if theirs[name] != version:
                line = f"Worker {worker} has {name} {theirs[name]}, the learner {version}."
                print(line, file=sys.stderr)
        if worker in self._busy and worker not in self._arrived:
            self._transport.send(worker, *self._busy[worker], self._states[worker])

    def _restart(self, worker: int, loss: LostError) -> None:
        self._cause = f"worker {worker} was lost: {loss}"
        print(f"Worker {worker} was lost ({loss}) and is restarted.", file=sys.stderr)
        self._started.discard(worker)
        if not self._options.sync:
            self._busy.pop(worker, None)
        self._transport.start(worker)
        self._reminder = time.monotonic() + _START

    def _missing(self) -> str:
        count = self._options.num_workers
        missing = count - len(self._started)
        return f"{missing} of {count} workers {self._transport.obstacle}" if missing else ""


def make_collector(*parts: Any) -> SingleCollector | WorkersCollector:
    """Makes the collector selected by ``collector=`` from the arguments of :class:`Collector`."""
    return (SingleCollector if parts[-1].collector.is_single else WorkersCollector)(*parts)
