"""The tables of a report."""

from __future__ import annotations

import math

from vmfer_recipes.reporting.document import Table, Value
from vmfer_recipes.reporting.estimate import Estimate
from vmfer_recipes.reporting.results import Cell, Study
from vmfer_recipes.reporting.scores import FINAL_SHARE

__all__ = [
    "average_table",
    "comparison_table",
    "curve_table",
    "final_table",
    "left_out_table",
    "run_table",
    "speed_table",
]

_NUMBERS = ("final (mean)", "final (IQM)", "area (mean)", "area (IQM)")
_INTERVAL = "in brackets, the 95 % stratified-bootstrap interval"


def _place(study: Study, cell: Cell) -> dict[str, Value]:
    return {
        "task": study.task_labels[cell.task],
        "method": study.method_labels[cell.method],
    }


def _all_cells(study: Study) -> list[Cell]:
    return [cell for task in study.tasks for cell in study.cells_of(task)]


def final_table(study: Study, name: str) -> Table:
    """Final score and area under the curve of every cell.

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
    pattern = "{:,.1f}" if name == "return" else "{:.3f}"
    return Table(
        f"final_{name}",
        f"Final {words}: mean over the last {FINAL_SHARE:.0%} of the training. Area: mean "
        f"{words} over the whole training (area under the curve divided by its length). "
        f"Over seeds: mean and interquartile mean (IQM), {_INTERVAL}.",
        rows,
        dict.fromkeys(_NUMBERS, pattern),
        header=("task", "method", "seeds", *_NUMBERS),
    )


def comparison_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task."""
    rows: list[dict[str, Value]] = []
    for comparison in study.comparisons:
        cell = comparison.cell
        rows.append(
            {
                **_place(study, cell),
                "judged by": "final " + cell.score_name.replace("_", " "),
                "seeds": len(cell.runs),
                "baseline seeds": len(comparison.baseline.runs),
                "% of baseline": comparison.improvement,
                "P(improvement)": comparison.probability,
                "verdict": comparison.verdict,
                "baseline": study.method_labels[comparison.baseline.method]
                + (f" ({comparison.note})" if comparison.note else ""),
            }
        )
    return Table(
        "comparisons",
        "P(improvement): the probability that a seed of the method beats a seed of the baseline "
        f"(ties count half); {_INTERVAL}. The verdict follows from this interval: above the "
        "baseline if all of it is above 0.5.",
        rows,
        {"% of baseline": "{:.1f}", "P(improvement)": "{:.2f}"},
    )


def average_table(study: Study) -> Table:
    """The paper's Table 1 next to the numbers of this study."""
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
                "% of baseline": average.improvement,
                "P(improvement)": average.probability,
                "verdict": average.verdict,
                "paper, % of baseline": average.paper,
            }
        )
    return Table(
        "average_improvement",
        "Average performance improvement: the final score in percent of the baseline's, averaged "
        f"over tasks; {_INTERVAL}. The paper gives no interval and does not say which score and "
        "which versions of the environments it uses.",
        rows,
        {"% of baseline": "{:.1f}", "P(improvement)": "{:.2f}", "paper, % of baseline": "{:.2f}"},
    )


def _range(cells: list[Cell]) -> Value:
    counts = sorted({len(cell.runs) for cell in cells})
    return counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def speed_table(study: Study) -> Table:
    """How fast the runs were."""
    baselines = {id(c.cell): c.baseline for c in study.comparisons}
    paper = study.paper["update_seconds"]
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
                    "final return": float(cell.final["return"][i]) if cell.complete else None,
                    "run": run.path,
                }
            )
    return Table("runs", "The runs behind the numbers.", rows, {"final return": "{:,.1f}"})


def left_out_table(study: Study) -> Table:
    """The runs that were not used, and why."""
    rows: list[dict[str, Value]] = [
        {"run": item.path, "reason": item.reason} for item in study.left_out
    ]
    return Table(
        "left_out", "Runs that are not part of any number.", rows, {}, header=("run", "reason")
    )
