"""Workers of a run in this process, whose reports arrive in any order."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager

import numpy as np
import torch

from vmfer_recipes.collection.worker import Chunk, LostError, remote_worker, reported


@contextmanager
def unchanged_generators():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


class InlinePool:
    """A stand-in for the processes and Ray actors of workers.

    A seed determines which of the waiting reports arrive next. Worker ``n`` is lost instead of
    returning its chunk ``m`` if ``(n, m)`` is in ``losses``, and right after this chunk has arrived
    if it is in ``idle_losses``. Everything is pickled, as between processes.
    """

    obstacle = "are asleep"
    seed = 0
    losses: tuple[tuple[int, int], ...] = ()
    idle_losses: tuple[tuple[int, int], ...] = ()
    made: list[InlinePool]

    def __init__(self, *parts):
        self._parts = pickle.dumps(parts)
        self._workers = {}
        self._order = random.Random(self.seed)
        self._losses, self._idle_losses = set(self.losses), set(self.idle_losses)
        self.reports = []
        self.requests = []
        self.weights, self.states = [], []
        self.is_closed = False
        self.made.append(self)

    def start(self, worker):
        self._workers[worker] = remote_worker(self._parts, worker)
        self.reports.append((worker, next(self._workers[worker])))

    def receive(self, timeout):
        later = []
        for _ in range(self._order.randint(1, max(len(self.reports), 1)) if self.reports else 0):
            worker, report = self.reports.pop(self._order.randrange(len(self.reports)))
            yield worker, report
            number = max((r.number for w, r in self.requests if w == worker), default=None)
            if isinstance(report, Chunk) and (worker, number) in self._idle_losses:
                self._idle_losses.remove((worker, number))
                later.append((worker, LostError("killed")))
        self.reports += later

    def send(self, worker, request, weights, state):
        self.requests.append((worker, request))
        self.states.append(state)
        self.weights.append(weights)
        if (worker, request.number) in self._losses:
            self._losses.remove((worker, request.number))
            self.reports.append((worker, LostError("killed")))
            return
        arguments = pickle.loads(pickle.dumps((request, weights, state)))
        with unchanged_generators():
            try:
                report = self._workers[worker].send(arguments)
            except Exception as error:
                report = reported(error, worker)
        self.reports.append((worker, pickle.loads(pickle.dumps(report))))

    def close(self):
        self.is_closed = True
