"""Workers of a run in this process, whose reports arrive in any order."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager

import numpy as np
import torch

from vmfer_recipes.collection.worker import LostError, RemoteWorker, reported, versions


@contextmanager
def unchanged_generators():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


class InlinePool:
    """A stand-in for the pools of processes and of Ray actors.

    A seed determines which of the waiting reports arrive next. Worker ``n`` is lost instead of
    returning its chunk ``m`` if ``(n, m)`` is in ``losses``. Everything is pickled, as between
    processes.
    """

    seed = 0
    losses: tuple[tuple[int, int], ...] = ()
    made: list[InlinePool]

    def __init__(self, cfg, policy, count):
        self._parts = pickle.dumps((cfg, policy))
        self._workers = {}
        self._order = random.Random(self.seed)
        self._losses = set(self.losses)
        self.reports = []
        self.requests = []
        self.is_closed = False
        self.made.append(self)
        for worker in range(count):
            self._start(worker)

    def _start(self, worker):
        cfg, policy = pickle.loads(self._parts)
        self._workers[worker] = RemoteWorker(cfg, policy, worker)
        self.reports.append((worker, versions()))

    def wait(self, timeout):
        for _ in range(self._order.randint(1, max(len(self.reports), 1)) if self.reports else 0):
            worker, report = self.reports.pop(self._order.randrange(len(self.reports)))
            if isinstance(report, LostError):
                self._start(worker)
            yield worker, report

    def submit(self, worker, request, weights):
        self.requests.append((worker, request))
        if (worker, request.number) in self._losses:
            self._losses.remove((worker, request.number))
            self.reports.append((worker, LostError("killed")))
            return
        request, weights = pickle.loads(pickle.dumps((request, weights)))
        with unchanged_generators():
            try:
                report = self._workers[worker].collect(request, weights)
            except Exception as error:
                report = reported(error, worker)
        self.reports.append((worker, pickle.loads(pickle.dumps(report))))

    def obstacle(self):
        return "are asleep"

    def close(self):
        self.is_closed = True
