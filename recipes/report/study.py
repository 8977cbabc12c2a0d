"""From runs to results: which are used, what they are compared with, and what is left out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.keys import describe
from vmfer_recipes.config.names import CONFIGS
from vmfer_recipes.report import inference
from vmfer_recipes.report.baselines import Baseline
from vmfer_recipes.report.inference import Estimate, estimate, holm
from vmfer_recipes.report.methods import Method, Task, label_methods, label_tasks
from vmfer_recipes.report.results import LEVEL, Average, Cell, Comparison, Curve, Study
from vmfer_recipes.report.runs import LeftOut, Run, area, final

__all__ = ["make_study"]


def make_study(
    runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: Baseline | None = None
) -> Study:
    """Computes everything that a report shows; the default baseline is ``sampler=uniform``."""
    baseline = baseline or Baseline()
    groups: dict[tuple[Task, Method], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.method].append(run)
    baseline.check(groups)
    paper: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("paper.yaml")))
    study = Study(
        baseline,
        list(left_out),
        paper,
        task_labels=label_tasks({task for task, _ in groups}),
        method_labels=label_methods(groups, {*baseline.full}),
    )
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
    names = [name for name in ("return", "success_rate") if all(name in r.values for r in used)]
    cell = Cell(task, method, used, bool(finished), {n: _curve(used, n) for n in names}, {}, {})
    for name in names if finished else []:
        scored = [(run.steps, run.values[name]) for run in used]
        cell.final[name] = np.array([final(*each, task.total_frames) for each in scored])
        cell.area[name] = np.array([area(*each) for each in scored])
    return cell


def _curve(runs: list[Run], name: str) -> Curve:
    """Estimates at the steps of the coarsest run; other runs are interpolated to them."""
    coarsest = min(runs, key=lambda run: (len(run.steps), run.seed))
    end = min(run.steps[-1] for run in runs)
    # The end itself may be missing if the coarsest run is not the slowest.
    steps = np.union1d(coarsest.steps[coarsest.steps <= end], [end])
    values = np.stack([np.interp(steps, run.steps, run.values[name]) for run in runs])
    return {"step": steps, **inference.column_estimates(values)}


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
    best = holm(
        [inference.best_possible_p((len(c.runs), len(other.runs))) for c, other, _ in pairs]
    )
    level = LEVEL / max(1, len(pairs))  # the threshold of Holm's first step
    for i, (corrected, best_p) in enumerate(zip(holm(p_values), best, strict=True)):
        cell, other, note = pairs[i]
        x, y, is_ratio = tested[i]
        scores = cell.scores, other.scores
        detectable = inference.smallest_detectable_difference(x, y, level)
        mine, others = _paired_by_seed(cell, other)
        study.comparisons.append(
            Comparison(
                cell,
                other,
                note,
                probability=estimate(
                    inference.probability_of_improvement, cell.scores, other.scores
                ),
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
    if file.exists():
        for key, value in OmegaConf.load(file).items():
            defaults[f"replay.{key!s}"] = {repr(value)}
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
