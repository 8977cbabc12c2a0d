"""Compares methods with their baseline, task by task and on average."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.config.names import CONFIGS
from vmfer_recipes.reporting.estimate import Estimate
from vmfer_recipes.reporting.inference import (
    holm,
    paired_bootstrap,
    permutation_p,
    sign_flip_p,
    smallest_detectable_difference,
    smallest_detectable_ratio,
)
from vmfer_recipes.reporting.methods import Method, Task
from vmfer_recipes.reporting.results import LEVEL, Average, Cell, Comparison, Study
from vmfer_recipes.reporting.runs import described
from vmfer_recipes.reporting.statistics import (
    best_possible_p,
    estimate,
    mean_improvement,
    probability_of_improvement,
)

__all__ = ["average_over_tasks", "compare_on_task"]


class _Pair(NamedTuple):
    cell: Cell
    baseline: Cell
    note: str

    @property
    def seeds(self) -> tuple[int, int]:
        return len(self.cell.runs), len(self.baseline.runs)


def compare_on_task(study: Study, task: Task) -> None:
    """Adds the comparisons of a task to a study, and notes for methods that have none."""
    complete = [cell for cell in study.cells_of(task) if cell.complete]
    pairs = [
        pair
        for cell in complete
        if not study.baseline.matches(cell.method)
        and (pair := _paired_with_baseline(study, cell, complete)) is not None
    ]
    tested = [_tested(pair) for pair in pairs]
    p_values = [permutation_p(*scores) for scores in tested]
    corrected = holm(p_values)
    # A corrected p-value increases with every p-value, so the lowest ones give its lowest value.
    best = holm([best_possible_p(pair.seeds) for pair in pairs])
    level = LEVEL / max(1, len(pairs))  # the threshold of Holm's first step
    for i, pair in enumerate(pairs):
        x, y = pair.cell.scores, pair.baseline.scores
        is_ratio = _all_positive(pair)
        find_smallest = smallest_detectable_ratio if is_ratio else smallest_detectable_difference
        paired_scores = _paired_by_seed(pair)
        differences = paired_scores[0] - paired_scores[1]
        study.comparisons.append(
            Comparison(
                *pair,
                probability=estimate(probability_of_improvement, x, y),
                improvement=_improvement(x, y),
                final_improvement=_improvement(pair.cell.final_scores, pair.baseline.final_scores),
                paired=paired_bootstrap(*paired_scores) if len(differences) else None,
                pairs=len(differences),
                paired_p=sign_flip_p(differences) if len(differences) else math.nan,
                is_ratio=is_ratio,
                is_higher=bool(tested[i][0].mean() > tested[i][1].mean()),
                p_value=p_values[i],
                corrected_p=float(corrected[i]),
                best_p=float(best[i]),
                detectable=find_smallest(x, y, level=level),
            )
        )


def _paired_with_baseline(study: Study, cell: Cell, complete: list[Cell]) -> _Pair | None:
    baseline, note = study.baseline.of(cell.method, [other.method for other in complete])
    if baseline is not None:
        other = study.cells[cell.task, baseline]
        if cell.score_name == other.score_name:
            return _Pair(cell, other, note)
        note = "only one of the method and its baseline has a success rate"
    label = study.method_labels[cell.method]
    study.notes.append(f"{study.task_labels[cell.task]}: {label} has no comparison: {note}.")
    return None


def _all_positive(pair: _Pair) -> bool:
    return bool((pair.cell.scores > 0).all() and (pair.baseline.scores > 0).all())


def _tested(pair: _Pair) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of the scores, because effects on returns tend to be multiplicative."""
    scores = pair.cell.scores, pair.baseline.scores
    return (np.log(scores[0]), np.log(scores[1])) if _all_positive(pair) else scores


def _improvement(scores: np.ndarray, baseline: np.ndarray) -> Estimate | None:
    # A percentage of a baseline at or below zero has no meaning.
    is_positive = bool((baseline > 0).all())
    return estimate(mean_improvement, scores, baseline) if is_positive else None


def _paired_by_seed(pair: _Pair) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the seeds that both have."""
    scores, others = (
        {run.seed: score for run, score in zip(cell.runs, cell.scores, strict=True)}
        for cell in (pair.cell, pair.baseline)
    )
    common = sorted(scores.keys() & others.keys())
    return (
        np.array([scores[seed] for seed in common]),
        np.array([others[seed] for seed in common]),
    )


def average_over_tasks(study: Study) -> None:
    """Adds the averages over tasks to a study, and notes for what is not part of them."""
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
        suite = "paper" if task.name in paper["tasks"] and not task.variant else "other"
        key = (study.order(comparison.cell.method), task.total_frames, task.version, suite)
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
        is_from_paper = suite == "paper" and study.baseline.is_default
        study.averages.append(
            Average(
                method,
                members,
                tasks,
                estimate(mean_improvement, *cells, *baselines),
                _final_improvement(members),
                estimate(_mean_probability, *cells, *baselines),
                _paper_number(method, paper["columns"]) if is_from_paper else None,
            )
        )


def _final_improvement(members: list[Comparison]) -> Estimate | None:
    if any(member.final_improvement is None for member in members):
        return None
    cells = [member.cell.final_scores for member in members]
    return estimate(mean_improvement, *cells, *(m.baseline.final_scores for m in members))


def _mean_probability(*cells: np.ndarray) -> float:
    half = len(cells) // 2
    pairs = zip(cells[:half], cells[half:], strict=True)
    return float(np.mean([probability_of_improvement(*pair) for pair in pairs]))


def _paper_number(method: Method, columns: dict[str, dict[str, float]]) -> float | None:
    if _changed(method):  # the paper's table covers only the default hyperparameters
        return None
    return columns.get(method.family, {}).get(method.sampler)


def _changed(method: Method) -> list[str]:
    """The keys of the recipe, the sampler and the replay whose values are not the defaults."""
    # Several for some keys, because the default may depend on the kind of sampler.
    defaults: dict[str, set[str]] = defaultdict(set)
    for each in described(method.algorithm):
        group, _, name = each.name.rpartition(".")
        # The choice of a sampler, such as sampler=vmf_rank, does not count as a change.
        if not group or (group in ("sampler", "replay") and name not in ("name", "kind", "mode")):
            defaults[each.name].add(repr(each.default))
    file = CONFIGS / "replay" / f"{method.replay}.yaml"
    if file.exists():
        for key, value in OmegaConf.load(file).items():
            defaults[f"replay.{key!s}"] = {repr(value)}
    return [key for key, value in method.settings if value not in defaults.get(key, {value})]
