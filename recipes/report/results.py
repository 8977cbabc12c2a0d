"""What a study finds: cells of the table, comparisons with the baseline, averages over tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vmfer_recipes.report.baselines import Baseline
from vmfer_recipes.report.inference import Estimate, best_possible_p
from vmfer_recipes.report.methods import Method, Task
from vmfer_recipes.report.runs import LeftOut, Run

__all__ = ["LEVEL", "Average", "Cell", "Comparison", "Curve", "Study"]

LEVEL = 0.05  # of significance

Curve = dict[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task, as numbers by ``return`` and ``success_rate``."""

    task: Task
    method: Method
    runs: list[Run]  # from which the numbers are computed
    complete: bool  # whether they are finished; if none is, there is a curve but no score
    curves: dict[str, Curve]  # estimates at the steps of ``step``
    final: dict[str, np.ndarray]  # one number per seed: the mean over the end of training
    area: dict[str, np.ndarray]  # the same for the mean over the whole run

    @property
    def score_name(self) -> str:
        """What the method is judged by: the success rate where there is one."""
        return "success_rate" if "success_rate" in self.curves else "return"

    @property
    def scores(self) -> np.ndarray:
        """The area under the curve of each seed."""
        return self.area[self.score_name]

    @property
    def final_scores(self) -> np.ndarray:
        """The score of each seed at the end of training."""
        return self.final[self.score_name]

    @property
    def speed(self) -> float:
        """Training steps per second: the median over runs."""
        speeds = [run.speed for run in self.runs if math.isfinite(run.speed)]
        return float(np.median(speeds)) if speeds else math.nan


@dataclass(frozen=True)
class Comparison:
    """A method compared with its baseline on one task."""

    cell: Cell
    baseline: Cell
    note: str  # how the baseline differs, apart from the keys that are compared
    probability: Estimate  # that a seed of the method beats a seed of the baseline
    improvement: Estimate | None  # the score in percent of the baseline's, if all are positive
    final_improvement: Estimate | None  # the same for the score at the end of training
    paired: Estimate | None  # the difference over the seeds that both have, if there are any
    pairs: int  # the number of these seeds
    paired_p: float  # of the sign-flip test of their differences
    is_ratio: bool  # whether all scores are positive, so that their logarithms are tested
    is_higher: bool  # whether the method has the higher mean score, or mean logarithm
    p_value: float  # of the permutation test
    corrected_p: float  # the same, corrected for all comparisons of the task
    best_p: float  # the lowest corrected p-value that any scores of these seeds could have had
    detectable: float  # the smallest ratio, or else difference, that the seeds could have detected

    paper = None  # there is no number of the paper for a single task

    @property
    def method(self) -> Method:
        """The method."""
        return self.cell.method

    @property
    def comparisons(self) -> list[Comparison]:
        """What it consists of, as for an average: itself."""
        return [self]

    @property
    def seeds(self) -> tuple[int, int]:
        """How many the method has, and how many the baseline."""
        return len(self.cell.runs), len(self.baseline.runs)

    @property
    def too_few(self) -> bool:
        """Whether no outcome with these numbers of seeds could tell the methods apart."""
        return self.best_p > LEVEL

    @property
    def verdict(self) -> str:
        """What the corrected p-value says."""
        if self.too_few:
            return "too few seeds"
        if self.corrected_p >= LEVEL:
            return "undecided"
        return "above the baseline" if self.is_higher else "below the baseline"


@dataclass(frozen=True)
class Average:
    """The average improvement of a method over tasks of one kind."""

    method: Method
    comparisons: list[Comparison]
    tasks: str
    improvement: Estimate
    final_improvement: Estimate | None
    probability: Estimate
    paper: float | None

    @property
    def too_few(self) -> bool:
        """Whether no outcome with these numbers of seeds could tell the methods apart."""
        if len(self.comparisons) == 1:
            return self.comparisons[0].too_few
        return best_possible_p(*(comparison.seeds for comparison in self.comparisons)) > LEVEL

    @property
    def verdict(self) -> str:
        """That of a single task; for several tasks, what the interval of the probability says."""
        if len(self.comparisons) == 1:
            return self.comparisons[0].verdict
        if self.too_few:
            return "too few seeds"
        if self.probability.low > 0.5:
            return "above the baseline"
        return "below the baseline" if self.probability.high < 0.5 else "undecided"


@dataclass
class Study:
    """All results, and everything that is not part of them."""

    baseline: Baseline
    left_out: list[LeftOut]
    paper: dict[str, Any]
    task_labels: dict[Task, str]
    method_labels: dict[Method, str]
    cells: dict[tuple[Task, Method], Cell] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[Task]:
        """The tasks in order."""
        return sorted({task for task, _ in self.cells})

    @property
    def methods(self) -> list[Method]:
        """The methods in order."""
        return sorted({method for _, method in self.cells}, key=self.order)

    def cells_of(self, task: Task, family: str | None = None) -> list[Cell]:
        """The cells of a task in the order of families, the baseline first."""
        cells = [
            cell
            for (where, method), cell in self.cells.items()
            if where == task and family in (None, self.baseline.family(method))
        ]
        return sorted(cells, key=lambda cell: self.order(cell.method))

    def order(self, method: Method) -> tuple[Any, ...]:
        """By family, the baseline first, with numbers in hyperparameters sorted by size."""
        settings = tuple((key, _by_size(value)) for key, value in method.settings)
        is_other = not self.baseline.matches(method)
        replay = (method.replay != "uniform", method.replay)
        return (self.baseline.family(method), is_other, replay, method.sampler, settings)

    def label(self, cell: Cell) -> tuple[str, str]:
        """The names of the task and of the method of a cell."""
        return self.task_labels[cell.task], self.method_labels[cell.method]

    def place(self, result: Comparison | Average) -> str:
        """The name of the task, or of the tasks that are averaged."""
        task, count = result.comparisons[0].cell.task, len(result.comparisons)
        if count == 1:
            return self.task_labels[task]
        return f"mean of {count} tasks, {task.version}, {task.total_frames:,} steps"

    @property
    def wide_averages(self) -> list[Average]:
        """The averages over several tasks. That of one task says no more than its comparison."""
        return [average for average in self.averages if len(average.comparisons) > 1]


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, value)
