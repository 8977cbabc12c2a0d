"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vmfer_recipes.reporting.document import Table, Value
from vmfer_recipes.reporting.estimate import Estimate
from vmfer_recipes.reporting.results import LEVEL, Cell, Study
from vmfer_recipes.reporting.scores import FINAL_SHARE

__all__ = [
    "NAMES",
    "average_table",
    "comparison_table",
    "curve_table",
    "left_out_table",
    "number_format",
    "run_table",
    "score_table",
    "significance_table",
    "speed_table",
]

NAMES = (
    *("average_improvement", "comparisons", "tests", "scores_return", "scores_success_rate"),
    *("speed", "curves", "runs", "left_out"),
)
"""The names of all tables."""

_NUMBERS = ("AUC (mean)", "AUC (IQM)", "final (mean)", "final (IQM)")
_INTERVAL = "in brackets, the 95 % stratified-bootstrap interval"


def number_format(names: Iterable[str]) -> str:
    """How scores are shown: success rates need more digits than returns."""
    return "{:,.1f}" if {*names} <= {"return"} else "{:,.3f}"


def _place(study: Study, cell: Cell) -> dict[str, Value]:
    return {
        "task": study.task_labels[cell.task],
        "method": study.method_labels[cell.method],
    }


def _all_cells(study: Study) -> list[Cell]:
    return [cell for task in study.tasks for cell in study.cells_of(task)]


def score_table(study: Study, name: str) -> Table:
    """Area under the curve and final score of every cell.

    Args:
        study: the results.
        name: ``return`` or ``success_rate``.
    """
    rows: list[dict[str, Value]] = []
    for cell in _all_cells(study):
        if name not in cell.curves:
            continue
        numbers: dict[str, Value] = dict.fromkeys(_NUMBERS)
        if cell.complete:
            numbers = dict(zip(_NUMBERS, cell.summary(name), strict=True))
        seeds = len(cell.runs) if cell.complete else 0
        rows.append({**_place(study, cell), "seeds": seeds, **numbers})
    words = name.replace("_", " ")
    return Table(
        f"scores_{name}",
        f"AUC: mean {words} over the whole run (area under the learning curve divided by its "
        f"length). Final {words}: mean over the last {FINAL_SHARE:.0%} of the run. Over "
        f"seeds: mean and interquartile mean (IQM), {_INTERVAL}.",
        rows,
        dict.fromkeys(_NUMBERS, number_format([name])),
        header=("task", "method", "seeds", *_NUMBERS),
    )


def comparison_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the size of the effect."""
    rows: list[dict[str, Value]] = []
    for comparison in study.comparisons:
        cell, paired = comparison.cell, comparison.paired
        rows.append(
            {
                **_place(study, cell),
                "seeds": len(cell.runs),
                "baseline seeds": len(comparison.baseline.runs),
                "AUC, % of baseline": comparison.improvement,
                "final, % of baseline": comparison.final_improvement,
                "P(improvement)": comparison.probability,
                "pairs": comparison.pairs,
                "paired difference": None if paired is None else paired.difference,
                "paired p": comparison.paired_p,
                "judged by": "AUC of the " + cell.score_name.replace("_", " "),
                "baseline": study.method_labels[comparison.baseline.method]
                + (f" ({comparison.note})" if comparison.note else ""),
            }
        )
    return Table(
        "comparisons",
        "P(improvement): the probability that a seed of the method has a larger AUC than a seed of "
        f"the baseline (ties count half); {_INTERVAL}. Paired difference: the mean difference in "
        "AUC between runs with the same seed; its interval resamples pairs. Pairs: the seeds that "
        "both have. Paired p: two-sided sign-flip test of these differences, not corrected.",
        rows,
        {
            "AUC, % of baseline": "{:.1f}",
            "final, % of baseline": "{:.1f}",
            "P(improvement)": "{:.2f}",
            "paired p": "{:.3f}",
            "paired difference": number_format(c.cell.score_name for c in study.comparisons),
        },
    )


def significance_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the significance of the effect."""
    rows: list[dict[str, Value]] = []
    for comparison in study.comparisons:
        rows.append(
            {
                **_place(study, comparison.cell),
                "p": comparison.p_value,
                "corrected p": comparison.corrected_p,
                "lowest possible p": comparison.best_p,
                "detectable": comparison.detectable,
                "detectable as": "ratio" if comparison.is_ratio else "difference",
                "verdict": comparison.verdict,
            }
        )
    return Table(
        "tests",
        "p: two-sided permutation test of the mean log AUC (of the mean AUC if a score is zero or "
        "less). Corrected p: Holm's correction for all comparisons of the task; the verdict "
        f"follows from it, at the level {LEVEL}. Lowest possible p: the corrected p if in all "
        "comparisons every seed beat every seed of the baseline. Detectable: the smallest effect, "
        "in either direction, that a t-test would detect with a probability of 80 % at Holm's "
        "first threshold, with this number of seeds and their spread; smaller ones can be missed.",
        rows,
        {
            "p": "{:.3f}",
            "corrected p": "{:.3f}",
            "lowest possible p": "{:.3f}",
            "detectable": "{:,.2f}",
        },
    )


def average_table(study: Study) -> Table:
    """Averages over tasks, with those of the paper's Table 1 if they have the same baseline."""
    has_paper = any(average.paper is not None for average in study.averages)
    rows: list[dict[str, Value]] = []
    for average in study.averages:
        cells = [comparison.cell for comparison in average.comparisons]
        baselines = [comparison.baseline for comparison in average.comparisons]
        rows.append(
            {
                "method": study.method_labels[average.method],
                "tasks": average.tasks,
                "seeds per task": _range(cells),
                "baseline seeds": _range(baselines),
                "AUC, % of baseline": average.improvement,
                "final, % of baseline": average.final_improvement,
                "P(improvement)": average.probability,
                "verdict": average.verdict,
                **({"paper, % of baseline": average.paper} if has_paper else {}),
            }
        )
    caption = (
        "Average performance improvement: AUC and final score in percent of the baseline's, "
        f"averaged over tasks; {_INTERVAL}."
    )
    if has_paper:
        caption += (
            " The paper gives no interval and does not say which score and which versions of the "
            "environments it uses."
        )
    return Table(
        "average_improvement",
        caption,
        rows,
        {
            "AUC, % of baseline": "{:.1f}",
            "final, % of baseline": "{:.1f}",
            "P(improvement)": "{:.2f}",
            "paper, % of baseline": "{:.2f}",
        },
    )


def _range(cells: list[Cell]) -> Value:
    counts = sorted({len(cell.runs) for cell in cells})
    return counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def speed_table(study: Study) -> Table:
    """How fast the runs were."""
    baselines = {id(c.cell): c.baseline for c in study.comparisons}
    paper = study.paper["update_seconds"] if study.baseline.is_default else {}
    rows: list[dict[str, Value]] = []
    for cell in _all_cells(study):
        if math.isnan(cell.speed):
            continue
        baseline = baselines.get(id(cell))
        seconds = paper.get(cell.method.family, {})
        ratio = seconds.get(cell.method.sampler, math.nan) / seconds.get("uniform", math.nan)
        rows.append(
            {
                **_place(study, cell),
                "steps per second": cell.speed,
                "time, % of baseline": None
                if baseline is None
                else 100 * baseline.speed / cell.speed,
                "paper, % of baseline": None if math.isnan(ratio) else 100 * ratio,
            }
        )
    return Table(
        "speed",
        "Training steps per second between evaluations: the median over a run and over runs. "
        "Compare methods only if they ran on the same machine under the same load. The paper's "
        "number is the time of a SAC update on a 2080 Ti.",
        rows,
        {
            "steps per second": "{:.1f}",
            "time, % of baseline": "{:.0f}",
            "paper, % of baseline": "{:.0f}",
        },
        header=(
            "task",
            "method",
            "steps per second",
            "time, % of baseline",
            "paper, % of baseline",
        ),
    )


def curve_table(study: Study) -> Table:
    """The learning curves as numbers."""
    rows: list[dict[str, Value]] = []
    for cell in _all_cells(study):
        for name, curve in cell.curves.items():
            for i, step in enumerate(curve["step"]):
                mean = Estimate(*(float(curve[f"mean{end}"][i]) for end in ("", "_low", "_high")))
                iqm = Estimate(*(float(curve[f"iqm{end}"][i]) for end in ("", "_low", "_high")))
                rows.append(
                    {
                        **_place(study, cell),
                        "metric": name,
                        "seeds": len(cell.runs),
                        "step": int(step),
                        "mean": mean,
                        "IQM": iqm,
                    }
                )
    return Table("curves", "", rows, {})


def run_table(study: Study) -> Table:
    """The runs that were used."""
    rows: list[dict[str, Value]] = []
    for cell in _all_cells(study):
        for i, run in enumerate(cell.runs):
            rows.append(
                {
                    **_place(study, cell),
                    "seed": run.seed,
                    "evaluated to step": int(run.steps[-1]),
                    "AUC of return": float(cell.area["return"][i]) if cell.complete else None,
                    "final return": float(cell.final["return"][i]) if cell.complete else None,
                    "run": run.path,
                }
            )
    return Table(
        "runs",
        "The runs behind the numbers.",
        rows,
        dict.fromkeys(("AUC of return", "final return"), "{:,.1f}"),
    )


def left_out_table(study: Study) -> Table:
    """The runs that were not used, and why."""
    rows: list[dict[str, Value]] = [
        {"run": item.path, "reason": item.reason} for item in study.left_out
    ]
    return Table(
        "left_out", "Runs that are not part of any number.", rows, {}, header=("run", "reason")
    )
