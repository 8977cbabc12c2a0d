"""The metrics of a run between two rows of ``train.csv``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

__all__ = ["Averages", "Clock"]


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds one value for each metric."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value.detach())

    def means(self) -> dict[str, float]:
        """The means, by name."""
        return {name: values.double().mean().item() for name, values in self.state_dict().items()}

    def pop(self) -> dict[str, float]:
        """The means, by name. Then removes all values."""
        means = self.means()
        self._values.clear()
        return means

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The values, by name."""
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores saved values."""
        self._values = {name: list(values) for name, values in state.items()}


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
