"""From runs to results: which are used, what they are compared with, and what is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.reporting import scores
from vmfer_recipes.reporting.methods import (
    BASELINE,
    Method,
    Task,
    baseline_of,
    label_methods,
    label_tasks,
)
from vmfer_recipes.reporting.results import Average, Cell, Comparison, Curve, Study, order
from vmfer_recipes.reporting.runs import LeftOut, Run
from vmfer_recipes.reporting.statistics import (
    column_estimates,
    estimate,
    mean_improvement,
    probability_of_improvement,
)

__all__ = ["make_study"]


def make_study(runs: Sequence[Run], left_out: Sequence[LeftOut]) -> Study:
    """Computes everything that a report shows."""
    paper = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("paper.yaml")))
    assert isinstance(paper, dict)
    study = Study(left_out=list(left_out), paper={str(key): value for key, value in paper.items()})
    groups: dict[tuple[Task, Method], list[Run]] = defaultdict(list)
    for run in runs:
        groups[Task.of(run), Method.of(run)].append(run)
    study.task_labels = label_tasks({task for task, _ in groups})
    study.method_labels = label_methods(groups)
    for (task, method), members in groups.items():
        cell = _make_cell(task, method, members, study)
        if cell is not None:
            study.cells[task, method] = cell
    for task in study.tasks:
        complete = [cell for cell in study.cells_of(task) if cell.complete]
        for cell in complete:
            if cell.method.sampler != BASELINE:
                _compare(cell, complete, study)
    _average(study)
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


def _compare(cell: Cell, complete: list[Cell], study: Study) -> None:
    baseline, note = baseline_of(cell.method, [other.method for other in complete])
    label = study.method_labels[cell.method]
    if baseline is None:
        where = study.task_labels[cell.task]
        study.notes.append(f"{where}: {label} has no comparison: {note}.")
        return
    other = study.cells[cell.task, baseline]
    if cell.score_name != other.score_name:
        study.notes.append(
            f"{study.task_labels[cell.task]}: {label} has no comparison: only one of the method "
            "and its baseline has a success rate."
        )
        return
    scores = (cell.scores, other.scores)
    # A percentage of a baseline at or below zero has no meaning.
    positive = bool((other.scores > 0).all())
    study.comparisons.append(
        Comparison(
            cell,
            other,
            note,
            estimate(probability_of_improvement, *scores),
            estimate(mean_improvement, *scores) if positive else None,
        )
    )


def _average(study: Study) -> None:
    paper = study.paper["improvement"]
    groups: dict[tuple[Any, ...], list[Comparison]] = defaultdict(list)
    for comparison in study.comparisons:
        task = comparison.cell.task
        if comparison.improvement is None:
            study.notes.append(
                f"{study.task_labels[task]}: {study.method_labels[comparison.cell.method]} is not "
                "part of an average improvement: a seed of its baseline has a score of zero or "
                "less, so a percentage of it is meaningless."
            )
            continue
        suite = "paper" if task.name in paper["tasks"] else "other"
        key = (order(comparison.cell.method), task.total_frames, task.version, suite)
        groups[key].append(comparison)
    for (_, frames, version, suite), members in sorted(groups.items(), key=lambda item: item[0]):
        method = members[0].cell.method
        environments = {comparison.cell.task.environment for comparison in members}
        if len(environments) != len(members):
            study.notes.append(
                f"{study.method_labels[method]} has no average improvement over tasks, because "
                "the same environment was used with different settings of env."
            )
            continue
        names = ", ".join(sorted(comparison.cell.task.name for comparison in members))
        count = f"{len(members)} of the paper's {len(paper['tasks'])} tasks"
        tasks = (
            f"{count if suite == 'paper' else 'other tasks'} ({names}; {version}, {frames:,} steps)"
        )
        cells = [member.cell.scores for member in members]
        baselines = [member.baseline.scores for member in members]
        study.averages.append(
            Average(
                method,
                members,
                tasks,
                estimate(mean_improvement, *cells, *baselines),
                estimate(_mean_probability, *cells, *baselines),
                _paper_number(method, paper["columns"]) if suite == "paper" else None,
            )
        )


def _mean_probability(*cells: np.ndarray) -> float:
    half = len(cells) // 2
    pairs = zip(cells[:half], cells[half:], strict=True)
    return float(np.mean([probability_of_improvement(*pair) for pair in pairs]))


def _paper_number(method: Method, columns: dict[str, dict[str, float]]) -> float | None:
    settings = dict(method.settings)
    # The table is of two critics and one update per step; ablations are not in it.
    if settings.get("num_critics", "2") != "2" or settings.get("utd_ratio", "1") != "1":
        return None
    return columns.get(method.family, {}).get(method.sampler)


def _note_missing_cells(study: Study) -> None:
    for method in sorted({method for _, method in study.cells}, key=order):
        own = [task for task, other in study.cells if other == method]
        frames = {task.total_frames for task in own}
        versions = {task.version for task in own}
        siblings = {
            task
            for task, other in study.cells
            if other.family == method.family
            and not method.differing(other)
            and task.total_frames in frames
            and task.version in versions
        }
        missing = sorted(study.task_labels[task] for task in siblings - set(own))
        if missing:
            study.notes.append(
                f"{study.method_labels[method]} has no run on {'; '.join(missing)}, but other "
                "samplers do."
            )
