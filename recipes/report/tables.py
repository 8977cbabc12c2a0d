"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vmfer_recipes.report.document import Table, Value
from vmfer_recipes.report.inference import REPETITIONS, Estimate, column_estimates
from vmfer_recipes.report.runs import FINAL_SHARE, area, final
from vmfer_recipes.report.study import LEVEL, PAPER, Study

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

_PLACE = {"task": "", "method": ""}
_EFFECTS = {
    "AUC, % of baseline": "{:.1f}",
    "final, % of baseline": "{:.1f}",
    "P(improvement)": "{:.2f}",
}

_Rows = list[Sequence[Value]]


def _caption(name: str, **values: Any) -> str:
    return _filled(_TEXT["captions"][name], **values)


def number_format(names: Iterable[str]) -> str:
    """How scores are shown: success rates need more digits than returns."""
    return "{:,.1f}" if {*names} <= {"return"} else "{:,.3f}"


def _estimates(columns: dict[str, np.ndarray], i: int) -> list[Estimate]:
    """Mean and interquartile mean of one column."""
    return [Estimate(*columns[name][:, i].tolist()) for name in ("mean", "iqm")]


def score_table(study: Study, metric: str) -> Table:
    """Area under the curve and final score, by ``return`` or ``success_rate``, of every cell."""
    rows: _Rows = []
    for cell in study.cells:
        if metric in cell.curves and cell.complete:
            both = column_estimates(np.stack([cell.final(metric), cell.area(metric)], axis=1))
            numbers = *_estimates(both, 1), *_estimates(both, 0)
            rows.append((*study.label(cell), len(cell.runs), *numbers))
        elif metric in cell.curves:
            rows.append((*study.label(cell), 0, *[None] * 4))
    names = ("AUC (mean)", "AUC (IQM)", "final (mean)", "final (IQM)")
    columns = {**_PLACE, "seeds": "", **dict.fromkeys(names, number_format([metric]))}
    caption = _caption("scores", metric=metric.replace("_", " "))
    return Table(f"scores_{metric}", caption, columns, rows)


def comparison_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the size of the effect."""
    columns = {
        **_PLACE,
        "seeds": "",
        "baseline seeds": "",
        **_EFFECTS,
        "pairs": "",
        "paired difference": number_format(each.cell.score_name for each in study.comparisons),
        "paired p": "{:.3f}",
        "judged by": "",
        "baseline": "",
    }
    rows = [
        (
            *study.label(each.cell),
            *each.seed_counts,
            *(each.improvement, each.final_improvement, each.probability),
            *(each.pairs, each.paired, each.paired_p),
            "AUC of the " + each.cell.score_name.replace("_", " "),
            study.method_labels[each.baseline.method] + (f" ({each.note})" if each.note else ""),
        )
        for each in study.comparisons
    ]
    return Table("comparisons", _caption("comparisons"), columns, rows)


def significance_table(study: Study) -> Table:
    """Every method compared with its baseline, task by task: the significance of the effect."""
    columns = _PLACE | dict.fromkeys(("p", "corrected p", "lowest possible p"), "{:.3f}")
    columns |= {"detectable": "{:,.2f}", "detectable as": "", "verdict": ""}
    rows = [
        (
            *study.label(each.cell),
            *(each.p_value, each.corrected_p, each.best_p),
            *(each.detectable, "ratio" if each.is_ratio else "difference", each.verdict),
        )
        for each in study.comparisons
    ]
    return Table("tests", _caption("tests"), columns, rows)


def average_table(study: Study) -> Table:
    """Averages over tasks, with those of the paper's Table 1 if they have the same baseline."""
    columns = {"method": "", "tasks": "", "seeds per task": "", "baseline seeds": ""}
    columns |= {**_EFFECTS, "verdict": ""}
    caption = _caption("average_improvement")
    if has_paper := any(each.paper for each in study.averages):
        columns |= {"paper, % of baseline": "{:.2f}"}
        caption += f" {_caption('paper')}"
    rows: _Rows = [
        (
            study.method_labels[each.method],
            each.tasks,
            *each.seed_counts,
            *(each.improvement, each.final_improvement, each.probability, each.verdict),
            *[each.paper] * has_paper,
        )
        for each in study.averages
    ]
    return Table("average_improvement", caption, columns, rows)


def speed_table(study: Study) -> Table:
    """How fast the runs were."""
    baselines = {id(each.cell): each.baseline.speed for each in study.comparisons}
    paper = PAPER["update_seconds"] if study.baseline.is_default else {}
    rows: _Rows = []
    for cell in study.cells:
        if not math.isnan(cell.speed):
            seconds = paper.get(cell.method.family, {})
            ratio = seconds.get(cell.method.sampler, math.nan) / seconds.get("uniform", math.nan)
            relative = baselines.get(id(cell), math.nan) / cell.speed
            rows.append((*study.label(cell), cell.speed, 100 * relative, 100 * ratio))
    names = ("time, % of baseline", "paper, % of baseline")
    columns = {**_PLACE, "steps per second": "{:.1f}", **dict.fromkeys(names, "{:.0f}")}
    return Table("speed", _caption("speed"), columns, rows)


def curve_table(study: Study) -> Table:
    """The learning curves as numbers."""
    rows: _Rows = [
        (*study.label(cell), metric, len(cell.runs), int(step), *_estimates(curve, i))
        for cell in study.cells
        for metric, curve in cell.curves.items()
        for i, step in enumerate(curve["step"])
    ]
    names = ("task", "method", "metric", "seeds", "step", "mean", "IQM")
    return Table("curves", "", dict.fromkeys(names, ""), rows)


def run_table(study: Study) -> Table:
    """The runs that were used."""
    rows: _Rows = []
    for cell in study.cells:
        for run in cell.runs:
            curve = run.steps, run.values["return"]
            scores = (area(*curve), final(*curve)) if cell.complete else (None, None)
            rows.append((*study.label(cell), run.seed, int(run.steps[-1]), *scores, run.path))
    columns = {**_PLACE, "seed": "", "evaluated to step": ""}
    columns |= {"AUC of return": "{:,.1f}", "final return": "{:,.1f}", "run": ""}
    return Table("runs", _caption("runs"), columns, rows)


def left_out_table(study: Study) -> Table:
    """The runs that were not used, and why."""
    return Table("left_out", _caption("left_out"), {"run": "", "reason": ""}, study.left_out)
