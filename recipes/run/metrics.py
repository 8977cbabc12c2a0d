"""The metrics of a run between two rows of ``train.csv``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Averages", "Clock"]


_MOST = 1000  # values that are kept, so that memory does not grow with the interval between rows


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        # Values are kept and summed later, because operations on single numbers are slow.
        self._values: dict[str, list[torch.Tensor]] = {}
        self._sums: dict[str, tuple[float, int]] = {}  # sums and numbers of earlier values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds one value for each metric."""
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if len(values) >= _MOST:
                self._sums[name] = self._sum(name)
                values.clear()
            values.append(value.detach())

    def _sum(self, name: str) -> tuple[float, int]:
        values = torch.stack(self._values[name]).double()
        total, count = self._sums.get(name, (0.0, 0))
        return total + values.sum().item(), count + values.numel()

    def means(self) -> dict[str, float]:
        """The means, by name."""
        sums = {name: self._sum(name) for name in self._values}
        return {name: total / count for name, (total, count) in sums.items()}

    def pop(self) -> dict[str, float]:
        """The means, by name. Then removes all values."""
        means = self.means()
        self._values.clear()
        self._sums.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """The values, by name, and the sums of earlier ones."""
        values = {name: torch.stack(values) for name, values in self._values.items()}
        return {"values": values, "sums": dict(self._sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        self._sums = dict(state["sums"])
        self._values = {name: list(values) for name, values in state["values"].items()}


class Clock:
    """Measures the speed of training, without evaluations.

    Args:
        step: the step at which it starts.
    """

    def __init__(self, step: int) -> None:
        self._step, self._start = step, time.perf_counter()

    def speed(self, step: int) -> float:
        """The steps per second since the last call."""
        now = time.perf_counter()
        speed = (step - self._step) / (now - self._start)
        self._step, self._start = step, now
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose duration is not counted."""
        pause = time.perf_counter()
        yield
        self._start += time.perf_counter() - pause
