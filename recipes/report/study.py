"""From runs to results: cells of the table, comparisons with the baseline, averages over tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.keys import describe
from vmfer_recipes.config.names import CONFIGS
from vmfer_recipes.config.saved import read_config
from vmfer_recipes.report import inference
from vmfer_recipes.report.baselines import Baseline
from vmfer_recipes.report.inference import Estimate, estimate, holm
from vmfer_recipes.report.methods import Method, Task, label_methods, label_tasks
from vmfer_recipes.report.runs import LeftOut, Run, area, final

__all__ = ["LEVEL", "Average", "Cell", "Comparison", "Study", "make_study"]

LEVEL = 0.05  # of significance

_PAPER = Path(__file__).with_name("paper.yaml")


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task, as numbers by ``return`` and ``success_rate``."""

    task: Task
    method: Method
    runs: list[Run]  # from which the numbers are computed
    complete: bool  # whether they are finished; if none is, there is a curve but no score

    @cached_property
    def curves(self) -> dict[str, dict[str, np.ndarray]]:
        """Estimates at the steps of the coarsest run; other runs are interpolated to them."""
        coarsest = min(self.runs, key=lambda run: (len(run.steps), run.seed)).steps
        end = min(run.steps[-1] for run in self.runs)
        # The end itself may be missing if the coarsest run is not the slowest.
        steps = np.union1d(coarsest[coarsest <= end], [end])
        curves = {}
        for name in ("return", "success_rate"):
            if all(name in run.values for run in self.runs):
                values = [np.interp(steps, run.steps, run.values[name]) for run in self.runs]
                curves[name] = {"step": steps, **inference.column_estimates(np.stack(values))}
        return curves

    @cached_property
    def area(self) -> dict[str, np.ndarray]:
        """The mean over the whole run, one number per seed."""
        names = self.curves if self.complete else ()
        return {n: np.array([area(run.steps, run.values[n]) for run in self.runs]) for n in names}

    @cached_property
    def final(self) -> dict[str, np.ndarray]:
        """The mean over the end of training, one number per seed."""
        return {
            name: np.array([final(r.steps, r.values[name], r.task.total_frames) for r in self.runs])
            for name in self.area
        }

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
        return inference.best_possible_p(*(each.seeds for each in self.comparisons)) > LEVEL

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


def make_study(
    runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: Baseline | None = None
) -> Study:
    """Computes everything that a report shows; the default baseline is ``sampler=uniform``."""
    baseline = baseline or Baseline()
    groups: dict[tuple[Task, Method], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.method].append(run)
    baseline.check(groups)
    task_labels = label_tasks({task for task, _ in groups})
    method_labels = label_methods(groups, {*baseline.full})
    study = Study(baseline, list(left_out), read_config(_PAPER), task_labels, method_labels)
    for (task, method), members in groups.items():
        study.cells[task, method] = _make_cell(study, task, method, members)
    for task in study.tasks:
        _compare_on_task(study, task)
    _average_over_tasks(study)
    _note_missing_cells(study)
    return study


def _make_cell(study: Study, task: Task, method: Method, runs: list[Run]) -> Cell:
    finished = [run for run in runs if run.finished]
    used = sorted(finished or runs, key=lambda run: run.seed)
    for run in runs:
        if run not in used:
            end = f"{run.steps[-1]:,.0f} of {task.total_frames:,}"
            study.left_out.append(LeftOut(run.path, f"unfinished: evaluated to step {end}"))
    if not finished:
        study.notes.append(
            f"{study.task_labels[task]}: no run of {study.method_labels[method]} is finished "
            f"({len(runs)} started). Its curve ends at the last step that all of them have "
            "reached, and it has no final numbers."
        )
    return Cell(task, method, used, bool(finished))


def _compare_on_task(study: Study, task: Task) -> None:
    """Adds the comparisons of a task to a study, and notes for methods that have none."""
    complete = [cell for cell in study.cells_of(task) if cell.complete]
    pairs = []
    for cell in complete:
        if study.baseline.matches(cell.method):
            continue
        found, note = study.baseline.of(cell.method, [other.method for other in complete])
        other = None if found is None else study.cells[task, found]
        if other is not None and cell.score_name == other.score_name:
            pairs.append((cell, other, note))
            continue
        if other is not None:
            note = "only one of the method and its baseline has a success rate"
        where, label = study.label(cell)
        study.notes.append(f"{where}: {label} has no comparison: {note}.")
    tested = [_tested(cell.scores, other.scores) for cell, other, _ in pairs]
    p_values = [inference.permutation_p(x, y) for x, y, _ in tested]
    # A corrected p-value increases with every p-value, so the lowest ones give its lowest value.
    sizes = [(len(cell.runs), len(other.runs)) for cell, other, _ in pairs]
    best = holm([inference.best_possible_p(each) for each in sizes])
    level = LEVEL / max(1, len(pairs))  # the threshold of Holm's first step
    for i, (corrected, best_p) in enumerate(zip(holm(p_values), best, strict=True)):
        (cell, other, note), (x, y, is_ratio) = pairs[i], tested[i]
        scores = cell.scores, other.scores
        detectable = inference.smallest_detectable_difference(x, y, level)
        mine, others = _paired_by_seed(cell, other)
        study.comparisons.append(
            Comparison(
                cell,
                other,
                note,
                probability=estimate(inference.probability_of_improvement, *scores),
                improvement=_improvement(*scores),
                final_improvement=_improvement(cell.final_scores, other.final_scores),
                paired=inference.paired_difference(mine, others) if len(mine) else None,
                pairs=len(mine),
                paired_p=inference.sign_flip_p(mine - others) if len(mine) else math.nan,
                is_ratio=is_ratio,
                is_higher=bool(x.mean() > y.mean()),
                p_value=p_values[i],
                corrected_p=corrected,
                best_p=best_p,
                detectable=math.exp(detectable) if is_ratio else detectable,
            )
        )


def _tested(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """The logarithms of the scores, because effects on returns tend to be multiplicative."""
    is_ratio = bool((x > 0).all() and (y > 0).all())
    return (np.log(x), np.log(y), True) if is_ratio else (x, y, False)


def _improvement(scores: np.ndarray, baseline: np.ndarray) -> Estimate | None:
    # A percentage of a baseline at or below zero has no meaning.
    return estimate(inference.mean_improvement, scores, baseline) if (baseline > 0).all() else None


def _paired_by_seed(cell: Cell, other: Cell) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the seeds that both have."""
    seeds, others = ([run.seed for run in each.runs] for each in (cell, other))
    _, mine, theirs = np.intersect1d(seeds, others, return_indices=True)
    return cell.scores[mine], other.scores[theirs]


def _average_over_tasks(study: Study) -> None:
    """Adds the averages over tasks to a study, and notes for what is not part of them."""
    paper = study.paper["improvement"]
    groups: dict[tuple[Any, ...], list[Comparison]] = defaultdict(list)
    for comparison in study.comparisons:
        task = comparison.cell.task
        if comparison.improvement is None:
            where, label = study.label(comparison.cell)
            study.notes.append(
                f"{where}: {label} is not part of an average improvement: a seed of its baseline "
                "has a score of zero or less, so a percentage of it is meaningless."
            )
            continue
        suite = "paper" if task.name in paper["tasks"] and not task.variant else "other"
        key = (study.order(comparison.cell.method), task.total_frames, task.version, suite)
        groups[key].append(comparison)
    for (_, frames, version, suite), members in sorted(groups.items(), key=lambda item: item[0]):
        method = members[0].cell.method
        if len({member.cell.task.environment for member in members}) != len(members):
            study.notes.append(
                f"{study.method_labels[method]} has no average improvement over tasks, because "
                "the same environment was used with different settings of env."
            )
            continue
        names = ", ".join(sorted(member.cell.task.name for member in members))
        count = f"{len(members)} of the paper's {len(paper['tasks'])} tasks"
        kind = count if suite == "paper" else "other tasks"
        cells = [*(m.cell for m in members), *(m.baseline for m in members)]
        scores, final_scores = [c.scores for c in cells], [c.final_scores for c in cells]
        has_final = all(member.final_improvement is not None for member in members)
        number = None
        # The paper's table covers only the default hyperparameters.
        if suite == "paper" and study.baseline.is_default and not _changed(method):
            number = paper["columns"].get(method.family, {}).get(method.sampler)
        study.averages.append(
            Average(
                method,
                members,
                f"{kind} ({names}; {version}, {frames:,} steps)",
                estimate(inference.mean_improvement, *scores),
                estimate(inference.mean_improvement, *final_scores) if has_final else None,
                estimate(inference.probability_of_improvement, *scores),
                number,
            )
        )


def _changed(method: Method) -> list[str]:
    """The keys of the recipe, the sampler and the replay whose values are not the defaults."""
    # Several for some keys, because the default may depend on the sampler.
    defaults: dict[str, set[str]] = defaultdict(set)
    known = algorithms()
    for each in describe(known[method.algorithm]) if method.algorithm in known else []:
        group, _, name = each.name.rpartition(".")
        # The choice of a sampler, such as sampler=vmf_rank, does not count as a change.
        if not group or (
            group in ("sampler", "replay") and name not in ("name", "_target_", "mode")
        ):
            defaults[each.name].add(repr(each.default))
    file = CONFIGS / "replay" / f"{method.replay}.yaml"
    own = read_config(file) if file.exists() else {}
    defaults |= {f"replay.{key}": {repr(value)} for key, value in own.items()}
    return [key for key, value in method.settings if value not in defaults.get(key, {value})]


def _note_missing_cells(study: Study) -> None:
    baseline = study.baseline
    for method in study.methods:
        own = {task for task, other in study.cells if other == method}
        frames, versions = {task.total_frames for task in own}, {task.version for task in own}
        siblings = {
            task
            for task, other in study.cells
            if baseline.family(other) == baseline.family(method)
            and not baseline.differing(method, other)
            and task.total_frames in frames
            and task.version in versions
        }
        missing = sorted(study.task_labels[task] for task in siblings - own)
        if missing:
            study.notes.append(
                f"{study.method_labels[method]} has no run on {'; '.join(missing)}, but other "
                "methods do."
            )
