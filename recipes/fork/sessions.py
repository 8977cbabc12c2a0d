"""A session for updates outside of a training run."""

from __future__ import annotations

from collections.abc import Iterator

from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.optim import Optimizer

from vmfer_recipes.run.progress import Averages
from vmfer_recipes.run.session import Stateful, TrainingSession

__all__ = ["PartialSession"]


class PartialSession(TrainingSession):
    """A session in which at most one optimizer takes steps, and nothing is written.

    Args:
        optimizer: the optimizer that takes steps; by default none.
        count: the number of steps of the session.
    """

    def __init__(self, optimizer: Optimizer | None = None, count: int = 0) -> None:
        self.metrics = _NoMetrics()
        self._optimizer = optimizer
        self._count = count

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """The numbers of the steps, from 1."""
        yield from range(1, self._count + 1)

    def descend(self, optimizer: Optimizer, loss: Tensor) -> None:
        """Takes one gradient step, unless the optimizer is another one."""
        if optimizer is self._optimizer:
            super().descend(optimizer, loss)


class _NoMetrics(Averages):
    """Ignores metrics. Each counts as already reported, so that none is measured."""

    def __contains__(self, name: str) -> bool:
        return True

    def add(self, **metrics: Tensor) -> None:
        """Ignores the metrics."""
