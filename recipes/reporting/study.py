"""From runs to results: which are used, what they are compared with, and what is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.reporting import scores
from vmfer_recipes.reporting.baselines import Baseline
from vmfer_recipes.reporting.comparisons import average_over_tasks, compare_on_task
from vmfer_recipes.reporting.methods import Method, Task, label_methods, label_tasks
from vmfer_recipes.reporting.results import Cell, Curve, Study
from vmfer_recipes.reporting.runs import LeftOut, Run
from vmfer_recipes.reporting.statistics import column_estimates

__all__ = ["make_study"]


def make_study(
    runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: Baseline | None = None
) -> Study:
    """Computes everything that a report shows.

    Args:
        runs: the runs.
        left_out: what could not be read.
        baseline: what the others are compared with; by default, ``sampler=uniform``.
    """
    paper = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("paper.yaml")))
    assert isinstance(paper, dict)
    study = Study(
        baseline=baseline or Baseline(),
        left_out=list(left_out),
        paper={str(key): value for key, value in paper.items()},
    )
    groups: dict[tuple[Task, Method], list[Run]] = defaultdict(list)
    for run in runs:
        groups[Task.of(run), Method.of(run)].append(run)
    study.task_labels = label_tasks({task for task, _ in groups})
    study.baseline.check(groups)
    study.method_labels = label_methods(groups, study.baseline.keys)
    for (task, method), members in groups.items():
        cell = _make_cell(task, method, members, study)
        if cell is not None:
            study.cells[task, method] = cell
    for task in study.tasks:
        compare_on_task(study, task)
    average_over_tasks(study)
    _note_missing_cells(study)
    return study


def _make_cell(task: Task, method: Method, runs: list[Run], study: Study) -> Cell | None:
    finished = [run for run in runs if run.finished]
    used = sorted(finished or runs, key=lambda run: run.seed)
    for run in runs:
        if run not in used:
            reason = f"unfinished: evaluated to step {run.steps[-1]:,.0f} of {run.total_frames:,}"
            study.left_out.append(LeftOut(run.path, reason))
    if not finished:
        study.notes.append(
            f"{study.task_labels[task]}: no run of {study.method_labels[method]} is finished "
            f"({len(runs)} started). Its curve ends at the last step that all of them have "
            "reached, and it has no final numbers."
        )
    has_success = all(run.success is not None for run in used)
    values: dict[str, Callable[[Run], np.ndarray]] = {"return": lambda run: run.returns}
    if has_success:
        values["success_rate"] = lambda run: np.asarray(run.success)
    curves, final, area = {}, {}, {}
    for name, of in values.items():
        curves[name] = _curve(used, of)
        if finished:
            final[name] = np.array(
                [scores.final(run.steps, of(run), run.total_frames) for run in used]
            )
            area[name] = np.array([scores.area(run.steps, of(run)) for run in used])
    return Cell(task, method, used, bool(finished), curves, final, area)


def _curve(runs: list[Run], of: Callable[[Run], np.ndarray]) -> Curve:
    """Estimates at the steps of the coarsest run; other runs are interpolated to them."""
    coarsest = min(runs, key=lambda run: (len(run.steps), run.seed))
    start, end = max(run.steps[0] for run in runs), min(run.steps[-1] for run in runs)
    # The end itself may be missing if the coarsest run is not the slowest.
    within = (coarsest.steps >= start) & (coarsest.steps <= end)
    steps = np.union1d(coarsest.steps[within], [end])
    scores = np.stack([np.interp(steps, run.steps, of(run)) for run in runs])
    return {"step": steps, **column_estimates(scores)}


def _note_missing_cells(study: Study) -> None:
    baseline = study.baseline
    for method in sorted({method for _, method in study.cells}, key=study.order):
        own = [task for task, other in study.cells if other == method]
        frames = {task.total_frames for task in own}
        versions = {task.version for task in own}
        siblings = {
            task
            for task, other in study.cells
            if baseline.family(other) == baseline.family(method)
            and not baseline.differing(method, other)
            and task.total_frames in frames
            and task.version in versions
        }
        missing = sorted(study.task_labels[task] for task in siblings - set(own))
        if missing:
            study.notes.append(
                f"{study.method_labels[method]} has no run on {'; '.join(missing)}, but other "
                "methods do."
            )
