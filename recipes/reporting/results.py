"""What a study finds: cells of the table, comparisons with the baseline, averages over tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vmfer_recipes.reporting.estimate import Estimate
from vmfer_recipes.reporting.methods import BASELINE, Method, Task
from vmfer_recipes.reporting.runs import LeftOut, Run
from vmfer_recipes.reporting.statistics import best_possible_p, column_estimates

__all__ = ["Average", "Cell", "Comparison", "Curve", "Study", "order"]

Curve = dict[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task.

    Attributes:
        runs: the runs from which the numbers are computed.
        complete: whether they are finished. If none is, there is a curve but no final number.
        curves: by ``return`` and ``success_rate``, estimates at the steps of ``step``.
        final: by the same names, one number per seed: the mean over the end of training.
        area: the same for the mean over the whole training.
    """

    task: Task
    method: Method
    runs: list[Run]
    complete: bool
    curves: dict[str, Curve]
    final: dict[str, np.ndarray]
    area: dict[str, np.ndarray]

    @property
    def score_name(self) -> str:
        """What the method is judged by: the success rate where there is one."""
        return "success_rate" if "success_rate" in self.curves else "return"

    @property
    def scores(self) -> np.ndarray:
        """The final score of each seed."""
        return self.final[self.score_name]

    @property
    def speed(self) -> float:
        """Training steps per second: the median over runs."""
        speeds = [run.speed for run in self.runs if math.isfinite(run.speed)]
        return float(np.median(speeds)) if speeds else math.nan

    def summary(self, name: str) -> list[Estimate]:
        """Of ``return`` or ``success_rate``: mean and IQM of the final score and of the area."""
        numbers = column_estimates(np.stack([self.final[name], self.area[name]], axis=1))
        return [
            Estimate(*(float(numbers[f"{statistic}{end}"][i]) for end in ("", "_low", "_high")))
            for i in (0, 1)
            for statistic in ("mean", "iqm")
        ]


@dataclass(frozen=True)
class Comparison:
    """A method compared with its baseline on one task.

    Attributes:
        note: how the baseline differs, apart from the sampler.
        improvement: the score in percent of the baseline's, if that is positive for every seed.
    """

    cell: Cell
    baseline: Cell
    note: str
    probability: Estimate
    improvement: Estimate | None

    @property
    def seeds(self) -> tuple[int, int]:
        """How many the method has, and how many the baseline."""
        return len(self.cell.runs), len(self.baseline.runs)

    @property
    def too_few(self) -> bool:
        """Whether no outcome with these numbers of seeds could tell the methods apart."""
        return best_possible_p(self.seeds) > 0.05

    @property
    def verdict(self) -> str:
        """What the interval of the probability of improvement says."""
        return _verdict(self.probability, self.too_few)


@dataclass(frozen=True)
class Average:
    """The paper's average performance improvement of a method over tasks of one kind."""

    method: Method
    comparisons: list[Comparison]
    tasks: str
    improvement: Estimate
    probability: Estimate
    paper: float | None

    @property
    def place(self) -> str:
        """What it is the average of."""
        task = self.comparisons[0].cell.task
        count = len(self.comparisons)
        return f"mean of {count} tasks, {task.version}, {task.total_frames:,} steps"

    @property
    def too_few(self) -> bool:
        """Whether no outcome with these numbers of seeds could tell the methods apart."""
        return best_possible_p(*(comparison.seeds for comparison in self.comparisons)) > 0.05

    @property
    def verdict(self) -> str:
        """What the interval of the probability of improvement says."""
        return _verdict(self.probability, self.too_few)


def _verdict(probability: Estimate, too_few: bool) -> str:
    if too_few:
        return "too few seeds"
    if probability.low > 0.5:
        return "above the baseline"
    return "below the baseline" if probability.high < 0.5 else "undecided"


@dataclass
class Study:
    """All results, and everything that is not part of them."""

    cells: dict[tuple[Task, Method], Cell] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    task_labels: dict[Task, str] = field(default_factory=dict)
    method_labels: dict[Method, str] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> list[Task]:
        """The tasks in order."""
        return sorted({task for task, _ in self.cells})

    def cells_of(self, task: Task, family: str | None = None) -> list[Cell]:
        """The cells of a task in the order of families, the baseline first."""
        cells = [
            cell
            for (where, method), cell in self.cells.items()
            if where == task and family in (None, method.family)
        ]
        return sorted(cells, key=lambda cell: order(cell.method))


def order(method: Method) -> tuple[Any, ...]:
    """By family, the baseline first, with numbers in hyperparameters sorted by size."""
    settings = tuple(
        (key, (0, float(value), "") if value.replace(".", "", 1).isdigit() else (1, 0.0, value))
        for key, value in method.settings
    )
    return (method.family, method.sampler != BASELINE, method.sampler, settings)
