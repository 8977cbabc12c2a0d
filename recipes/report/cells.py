"""The runs of one method on one task, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vmfer_recipes.report.inference import column_estimates
from vmfer_recipes.report.methods import Method, Task
from vmfer_recipes.report.runs import METRICS, Run, area, final


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task."""

    task: Task
    method: Method
    runs: list[Run]  # the runs from which the numbers are computed
    complete: bool  # whether they are finished; unfinished runs have a curve but no score

    @cached_property
    def curves(self) -> dict[str, dict[str, np.ndarray]]:
        """Estimates at the steps of the coarsest run; other runs are interpolated to them."""
        coarsest = min(self.runs, key=lambda run: (len(run.steps), run.seed)).steps
        end = min(run.steps[-1] for run in self.runs)
        # The end itself may be missing if the coarsest run is not the slowest.
        steps = np.union1d(coarsest[coarsest <= end], [end])
        curves = {}
        for metric in METRICS:
            if all(metric in run.values for run in self.runs):
                values = [np.interp(steps, run.steps, run.values[metric]) for run in self.runs]
                curves[metric] = {"step": steps, **column_estimates(np.stack(values))}
        return curves

    def area(self, metric: str) -> np.ndarray:
        """The mean over the whole run, one number per seed."""
        return np.array([area(run.steps, run.values[metric]) for run in self.runs])

    def final(self, metric: str) -> np.ndarray:
        """The mean over the end of training, one number per seed."""
        frames = self.task.total_frames
        return np.array([final(run.steps, run.values[metric], frames) for run in self.runs])

    @property
    def score_name(self) -> str:
        """The metric by which the method is judged: the success rate, if there is one."""
        return [metric for metric in METRICS if metric in self.curves][-1]

    @property
    def scores(self) -> np.ndarray:
        """The area under the curve of each seed."""
        return self.area(self.score_name)

    @property
    def speed(self) -> float:
        """Training steps per second: the median over runs."""
        speeds = [run.speed for run in self.runs if math.isfinite(run.speed)]
        return float(np.median(speeds)) if speeds else math.nan
