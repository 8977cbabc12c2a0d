"""From runs to results: cells of methods and tasks, comparisons, averages over tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vmfer_recipes.config.saved import read_config
from vmfer_recipes.report import inference
from vmfer_recipes.report.inference import Estimate, column_estimates, estimate, holm
from vmfer_recipes.report.methods import Baseline, Method, Task, label_methods, label_tasks
from vmfer_recipes.report.runs import METRICS, LeftOut, Run, area, final

LEVEL = 0.05  # significance level
PAPER = read_config(Path(__file__).with_name("paper.yaml"))
TOO_FEW = "too few seeds"  # the verdict if no scores could have been significant


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
        return np.array([final(run.steps, run.values[metric]) for run in self.runs])

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
        return float(pd.Series([run.speed for run in self.runs]).dropna().median())


@dataclass(frozen=True, kw_only=True)
class Result:
    """A method compared with its baseline, on one task or on average over several."""

    method: Method
    place: str  # the name of the task or tasks
    seeds: list[tuple[int, int]]  # the numbers for the method and for the baseline, task by task
    probability: Estimate  # the probability that a seed of the method beats one of the baseline
    improvement: Estimate | None  # the score in percent of the baseline's, if all are positive
    final_improvement: Estimate | None  # the same for the score at the end of training
    verdict: str
    paper: float | None = None  # the improvement in the paper

    @property
    def seed_counts(self) -> list[int | str]:
        """The seeds of the method and of the baseline; ranges if tasks have different numbers."""
        ranges = [(min(counts), max(counts)) for counts in zip(*self.seeds, strict=True)]
        return [low if low == high else f"{low}–{high}" for low, high in ranges]


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """A method compared with its baseline on one task. The corrected p-value decides."""

    cell: Cell
    baseline: Cell
    note: str  # how the baseline differs, apart from the keys that are compared
    paired: Estimate | None  # the difference over the seeds that both have, if there are any
    pairs: int  # the number of these seeds
    paired_p: float  # the p-value of the sign-flip test of their differences
    is_ratio: bool  # whether all scores are positive, so that their logarithms are tested
    p_value: float  # the p-value of the permutation test
    corrected_p: float  # the same, corrected for all comparisons of the task
    best_p: float  # the lowest corrected p-value that any scores of these seeds could have had
    detectable: float  # the smallest ratio, or else difference, that the seeds could have detected


@dataclass(frozen=True, kw_only=True)
class Average(Result):
    """The average improvement of a method over tasks of one kind."""

    comparisons: list[Comparison]
    tasks: str  # the kind, with the names of the tasks


@dataclass
class Study:
    """All results, in the order in which they are shown, and all runs and notes left out of them.

    Tasks are sorted by name, and methods by family, the baseline first.
    """

    baseline: Baseline
    left_out: list[LeftOut]
    task_labels: dict[Task, str]
    method_labels: dict[Method, str]
    cells: list[Cell] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def label(self, cell: Cell) -> tuple[str, str]:
        """The names of the task and of the method of a cell."""
        return self.task_labels[cell.task], self.method_labels[cell.method]

    @property
    def wide_averages(self) -> list[Average]:
        """The averages over several tasks. That of one task says no more than its comparison."""
        return [average for average in self.averages if len(average.comparisons) > 1]


def make_study(runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: Baseline) -> Study:
    """Computes everything that a report shows."""
    groups: dict[tuple[Task, Method], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.method].append(run)
    baseline.check(groups)
    labels = label_methods(groups, {*baseline.wanted})
    methods = sorted(labels, key=baseline.order)
    study = Study(
        baseline,
        list(left_out),
        label_tasks(sorted({task for task, _ in groups})),
        {method: labels[method] for method in methods},
    )
    for (task, method), members in groups.items():
        study.cells.append(_make_cell(study, task, method, members))
    study.cells.sort(key=lambda cell: (cell.task, methods.index(cell.method)))
    for task in study.task_labels:
        _compare_on_task(study, task)
    _average_over_tasks(study)
    _note_missing_cells(study)
    return study


def _make_cell(study: Study, task: Task, method: Method, runs: list[Run]) -> Cell:
    finished = [run for run in runs if run.finished]
    for run in runs:
        if finished and not run.finished:
            end = f"{run.steps[-1]:,.0f} of {task.total_frames:,}"
            study.left_out.append(LeftOut(run.path, f"unfinished: evaluated to step {end}"))
    if not finished:
        study.notes.append(
            f"{study.task_labels[task]}: no run of {study.method_labels[method]} is finished "
            f"({len(runs)} started). Its curve ends at the last step that all of them have "
            "reached, and it has no final numbers."
        )
    used = sorted(finished or runs, key=lambda run: run.seed)
    return Cell(task, method, used, bool(finished))


def _compare_on_task(study: Study, task: Task) -> None:
    """Adds the comparisons of a task to a study, and notes for methods that have none."""
    complete = {cell.method: cell for cell in study.cells if cell.task == task and cell.complete}
    pairs = []
    for method, cell in complete.items():
        if study.baseline.matches(method):
            continue
        others = [m for m, other in complete.items() if other.score_name == cell.score_name]
        found, note = study.baseline.of(method, task, others)
        if found is None:
            where, label = study.label(cell)
            study.notes.append(f"{where}: {label} has no comparison: {note}.")
        else:
            pairs.append((cell, complete[found], note))
    tested = [_tested(cell.scores, other.scores) for cell, other, _ in pairs]
    p_values = [inference.permutation_p(x, y) for x, y, _ in tested]
    corrected = holm(p_values)
    # A corrected p-value increases with every p-value, so the lowest ones give its lowest value.
    best = holm([inference.best_possible_p((len(x), len(y))) for x, y, _ in tested])
    found_for = zip(pairs, tested, p_values, corrected, best, strict=True)
    for (cell, other, note), (x, y, is_ratio), p_value, corrected_p, best_p in found_for:
        level = LEVEL / len(pairs)  # the threshold of Holm's first step
        detectable = inference.smallest_detectable_difference(x, y, level)
        mine, theirs = _paired_by_seed(cell, other)
        study.comparisons.append(
            Comparison(
                **_effects([(cell, other)]),
                place=study.task_labels[task],
                verdict=_verdict(best_p, corrected_p < LEVEL, bool(x.mean() > y.mean())),
                cell=cell,
                baseline=other,
                note=note,
                paired=inference.paired_difference(mine, theirs) if len(mine) else None,
                pairs=len(mine),
                paired_p=inference.sign_flip_p(mine - theirs) if len(mine) else math.nan,
                is_ratio=is_ratio,
                p_value=p_value,
                corrected_p=corrected_p,
                best_p=best_p,
                detectable=math.exp(detectable) if is_ratio else detectable,
            )
        )


def _tested(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """The logarithms of the scores, because effects on returns tend to be multiplicative."""
    is_ratio = bool((x > 0).all() and (y > 0).all())
    return (np.log(x), np.log(y), True) if is_ratio else (x, y, False)


def _verdict(best_p: float, is_decided: bool, is_higher: bool) -> str:
    if best_p > LEVEL:
        return TOO_FEW
    if not is_decided:
        return "undecided"
    return "above the baseline" if is_higher else "below the baseline"


def _effects(pairs: list[tuple[Cell, Cell]]) -> dict[str, Any]:
    """The effects of a method, from its cells and those of its baseline, on average over tasks."""
    cells = [cell for side in zip(*pairs, strict=True) for cell in side]

    def improvement(scores: list[np.ndarray]) -> Estimate | None:
        # A percentage of a baseline at or below zero has no meaning.
        is_positive = all((each > 0).all() for each in scores[len(pairs) :])
        return estimate(inference.mean_improvement, *scores) if is_positive else None

    scores = [cell.scores for cell in cells]
    return {
        "method": cells[0].method,
        "seeds": [(len(cell.runs), len(other.runs)) for cell, other in pairs],
        "probability": estimate(inference.probability_of_improvement, *scores),
        "improvement": improvement(scores),
        "final_improvement": improvement([cell.final(cell.score_name) for cell in cells]),
    }


def _paired_by_seed(cell: Cell, other: Cell) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the seeds that both have."""
    seeds, others = ([run.seed for run in each.runs] for each in (cell, other))
    _, mine, theirs = np.intersect1d(seeds, others, return_indices=True)
    return cell.scores[mine], other.scores[theirs]


def _average_over_tasks(study: Study) -> None:
    """Adds the averages over tasks to a study, and notes for what is not part of them."""
    known, methods = PAPER["improvement"]["tasks"], [*study.method_labels]
    groups: dict[tuple[int, int, str, bool], list[Comparison]] = defaultdict(list)
    for comparison in study.comparisons:
        task = comparison.cell.task
        if comparison.improvement is None:
            where, label = study.label(comparison.cell)
            study.notes.append(
                f"{where}: {label} is not part of an average improvement: a seed of its baseline "
                "has a score of zero or less, so a percentage of it is meaningless."
            )
            continue
        is_papers = task.name in known and not task.variant
        kind = (methods.index(comparison.method), task.total_frames, task.version, is_papers)
        groups[kind].append(comparison)
    for (number, frames, version, is_papers), members in sorted(groups.items()):
        method, environments = methods[number], [m.cell.task.environment for m in members]
        if len({*environments}) < len(members):
            study.notes.append(
                f"{study.method_labels[method]} has no average improvement over tasks, because "
                "the same environment was used with different settings of env."
            )
            continue
        effects = _effects([(member.cell, member.baseline) for member in members])
        place, verdict = members[0].place, members[0].verdict
        length = f"{version}, {frames:,} steps"
        if len(members) > 1:
            place = f"mean of {len(members)} tasks, {length}"
            _, low, high = effects["probability"]
            best_p = inference.best_possible_p(*effects["seeds"])
            verdict = _verdict(best_p, low > 0.5 or high < 0.5, low > 0.5)
        names = ", ".join(sorted(member.cell.task.name for member in members))
        count = f"{len(members)} of the paper's {len(known)}" if is_papers else "other"
        tasks = f"{count} tasks ({names}; {length})"
        paper = PAPER["improvement"]["columns"].get(method.family, {}).get(method.sampler)
        if paper and not (is_papers and study.baseline.is_default and method.is_default):
            paper = None
        shown = {"place": place, "verdict": verdict, "paper": paper, "tasks": tasks}
        study.averages.append(Average(**effects, **shown, comparisons=members))


def _note_missing_cells(study: Study) -> None:
    baseline = study.baseline
    for method, label in study.method_labels.items():
        own = {cell.task for cell in study.cells if cell.method == method}
        kinds = {(task.total_frames, task.version) for task in own}
        missing = {
            study.task_labels[cell.task]
            for cell in study.cells
            if cell.task not in own and (cell.task.total_frames, cell.task.version) in kinds
            if baseline.family(cell.method) == baseline.family(method)
            if not baseline.differing(method, cell.method)
        }
        if missing:
            study.notes.append(
                f"{label} has no run on {'; '.join(sorted(missing))}, but other methods do."
            )
