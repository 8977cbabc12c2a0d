"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vmfer_recipes.report.document import Table, Value
from vmfer_recipes.report.inference import REPETITIONS, Estimate, column_estimates
from vmfer_recipes.report.runs import FINAL_SHARE
from vmfer_recipes.report.study import LEVEL, Cell, Comparison, Study

__all__ = [
    *("EXPLANATIONS", "NAMES", "average_table", "comparison_table", "curve_table"),
    *("left_out_table", "number_format", "run_table", "score_table", "significance_table"),
    "speed_table",
]

NAMES = (
    *("average_improvement", "comparisons", "tests", "scores_return", "scores_success_rate"),
    *("speed", "curves", "runs", "left_out"),
)
"""The names of all tables."""

_TEXT = yaml.safe_load(Path(__file__).with_name("text.yaml").read_text(encoding="utf-8"))


def _filled(text: str, **values: Any) -> str:
    numbers = {"level": LEVEL, "percent": 100 * LEVEL, "final": FINAL_SHARE}
    return text.format(**numbers, repetitions=REPETITIONS, **values)


EXPLANATIONS = [_filled(text) for text in _TEXT["explanations"]]
"""How to read a report, point by point."""

_NUMBERS = ("AUC (mean)", "AUC (IQM)", "final (mean)", "final (IQM)")
_EFFECTS = {
    "AUC, % of baseline": "{:.1f}",
    "final, % of baseline": "{:.1f}",
    "P(improvement)": "{:.2f}",
}

_Rows = list[dict[str, Value]]


def _caption(name: str, **values: Any) -> str:
    return _filled(_TEXT["captions"][name], **values)


def number_format(names: Iterable[str]) -> str:
    """How scores are shown: success rates need more digits than returns."""
    return "{:,.1f}" if {*names} <= {"return"} else "{:,.3f}"


def _place(study: Study, cell: Cell) -> dict[str, Value]:
    return dict(zip(("task", "method"), study.label(cell), strict=True))


def _all_cells(study: Study) -> list[Cell]:
    return [cell for task in study.tasks for cell in study.cells_of(task)]


def _estimates(columns: dict[str, np.ndarray], i: int) -> list[Estimate]:
    """Mean and interquartile mean of one column."""
    ends = ("", "_low", "_high")
    return [Estimate(*(float(columns[n + end][i]) for end in ends)) for n in ("mean", "iqm")]


def score_table(study: Study, name: str) -> Table:
    """Area under the curve and final score, by ``return`` or ``success_rate``, of every cell."""
    rows: _Rows = []
    for cell in _all_cells(study):
        if name in cell.curves:
            numbers: list[Estimate] | list[None] = [None] * 4
            if cell.complete:
                both = column_estimates(np.stack([cell.final[name], cell.area[name]], axis=1))
                numbers = _estimates(both, 1) + _estimates(both, 0)
            seeds = {"seeds": len(cell.runs) if cell.complete else 0}
            rows.append(_place(study, cell) | seeds | dict(zip(_NUMBERS, numbers, strict=True)))
    return Table(
        f"scores_{name}",
        _caption("scores", metric=name.replace("_", " ")),
        rows,
        dict.fromkeys(_NUMBERS, number_format([name])),
        header=("task", "method", "seeds", *_NUMBERS),
    )


def comparison_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the size of the effect."""

    def row(each: Comparison) -> dict[str, Value]:
        note = f" ({each.note})" if each.note else ""
        return {
            **_place(study, each.cell),
            "seeds": len(each.cell.runs),
            "baseline seeds": len(each.baseline.runs),
            "AUC, % of baseline": each.improvement,
            "final, % of baseline": each.final_improvement,
            "P(improvement)": each.probability,
            "pairs": each.pairs,
            "paired difference": each.paired,
            "paired p": each.paired_p,
            "judged by": "AUC of the " + each.cell.score_name.replace("_", " "),
            "baseline": study.method_labels[each.baseline.method] + note,
        }

    difference = number_format(each.cell.score_name for each in study.comparisons)
    return Table(
        "comparisons",
        _caption("comparisons"),
        [row(comparison) for comparison in study.comparisons],
        {**_EFFECTS, "paired p": "{:.3f}", "paired difference": difference},
    )


def significance_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the significance of the effect."""
    rows: _Rows = [
        {
            **_place(study, each.cell),
            "p": each.p_value,
            "corrected p": each.corrected_p,
            "lowest possible p": each.best_p,
            "detectable": each.detectable,
            "detectable as": "ratio" if each.is_ratio else "difference",
            "verdict": each.verdict,
        }
        for each in study.comparisons
    ]
    return Table(
        "tests",
        _caption("tests"),
        rows,
        dict.fromkeys(("p", "corrected p", "lowest possible p"), "{:.3f}")
        | {"detectable": "{:,.2f}"},
    )


def average_table(study: Study) -> Table:
    """Averages over tasks, with those of the paper's Table 1 if they have the same baseline."""
    has_paper = any(average.paper is not None for average in study.averages)
    rows: _Rows = []
    for average in study.averages:
        row: dict[str, Value] = {
            "method": study.method_labels[average.method],
            "tasks": average.tasks,
            "seeds per task": _range(each.seeds[0] for each in average.comparisons),
            "baseline seeds": _range(each.seeds[1] for each in average.comparisons),
            "AUC, % of baseline": average.improvement,
            "final, % of baseline": average.final_improvement,
            "P(improvement)": average.probability,
            "verdict": average.verdict,
        }
        rows.append(row | ({"paper, % of baseline": average.paper} if has_paper else {}))
    caption = _caption("average_improvement")
    caption += f" {_caption('paper')}" if has_paper else ""
    formats = {**_EFFECTS, "paper, % of baseline": "{:.2f}"}
    return Table("average_improvement", caption, rows, formats)


def _range(counts: Iterable[int]) -> Value:
    found = sorted({*counts})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def speed_table(study: Study) -> Table:
    """How fast the runs were."""
    baselines = {id(each.cell): each.baseline.speed for each in study.comparisons}
    paper = study.paper["update_seconds"] if study.baseline.is_default else {}
    formats = {
        "steps per second": "{:.1f}",
        "time, % of baseline": "{:.0f}",
        "paper, % of baseline": "{:.0f}",
    }
    rows: _Rows = []
    for cell in _all_cells(study):
        if not math.isnan(cell.speed):
            seconds = paper.get(cell.method.family, {})
            ratio = seconds.get(cell.method.sampler, math.nan) / seconds.get("uniform", math.nan)
            relative = baselines.get(id(cell), math.nan) / cell.speed
            numbers = (cell.speed, 100 * relative, 100 * ratio)
            rows.append(_place(study, cell) | dict(zip(formats, numbers, strict=True)))
    return Table(
        "speed",
        _caption("speed"),
        rows,
        formats,
        header=("task", "method", *formats),
    )


def curve_table(study: Study) -> Table:
    """The learning curves as numbers."""
    rows: _Rows = []
    for cell in _all_cells(study):
        for name, curve in cell.curves.items():
            for i, step in enumerate(curve["step"]):
                mean, iqm = _estimates(curve, i)
                row = {**_place(study, cell), "metric": name, "seeds": len(cell.runs)}
                rows.append({**row, "step": int(step), "mean": mean, "IQM": iqm})
    return Table("curves", "", rows, {})


def run_table(study: Study) -> Table:
    """The runs that were used."""
    rows: _Rows = []
    for cell in _all_cells(study):
        for i, run in enumerate(cell.runs):
            row = {**_place(study, cell), "seed": run.seed, "evaluated to step": int(run.steps[-1])}
            for name, scores in {"AUC of return": cell.area, "final return": cell.final}.items():
                row[name] = float(scores["return"][i]) if cell.complete else None
            rows.append({**row, "run": run.path})
    formats = dict.fromkeys(("AUC of return", "final return"), "{:,.1f}")
    return Table("runs", _caption("runs"), rows, formats)


def left_out_table(study: Study) -> Table:
    """The runs that were not used, and why."""
    rows: _Rows = [{"run": item.path, "reason": item.reason} for item in study.left_out]
    return Table("left_out", _caption("left_out"), rows, {}, header=("run", "reason"))
