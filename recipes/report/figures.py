"""The figures of a report. A sampler has the same color in all of them."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from vmfer_recipes.config.errors import counted
from vmfer_recipes.report.document import Picture
from vmfer_recipes.report.inference import Estimate
from vmfer_recipes.report.methods import Method, Task, family_label
from vmfer_recipes.report.study import TOO_FEW, Cell, Result, Study
from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, ORANGE, PINK, SKY, VERMILION

matplotlib.rcParams |= {
    "text.parse_math": False,  # a name with dollar signs is not a formula
    "figure.constrained_layout.use": True,
    "figure.titlesize": 14,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
}

_COLORS = {
    "uniform": GRAY,
    "fresh": SKY,
    "vmf_uncertainty": VERMILION,
    "vmf_rank": BLUE,
    "vmf_ema": GREEN,
    "vmf_pool": PINK,
    "vmf_direct": ORANGE,
}
_OTHER_COLOR = "#8b5a2b"
_STROKES = ("-", "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = "osD^v"
# With three seeds of two methods, p is 0.1 even if all differ in the same direction, and the
# interquartile mean is the mean.
_ENOUGH_SEEDS = 4
_STATISTICS = {"mean": "mean", "iqm": "interquartile mean"}
_METRICS = {"return": "evaluation return", "success_rate": "success rate"}


def _styles(study: Study) -> dict[Method, tuple[str, int]]:
    """Color by sampler, and a number that distinguishes methods of the same color."""
    names: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    styles = {}
    for method, name in study.method_labels.items():
        color = _COLORS.get(method.sampler, _OTHER_COLOR)
        alike = names[study.baseline.family(method), color]
        styles[method] = color, alike.setdefault(name, len(alike))
    return styles


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Below the axes, in as many columns as the longest name allows; no name is cut."""
    handles, names = axes.get_legend_handles_labels()
    per_line = int(figure.get_figwidth() * 10.5)  # characters of this size that fit
    wrapped = [textwrap.fill(name, per_line - 6) for name in names]
    longest = max(len(line) for name in wrapped for line in name.splitlines())
    columns = max(1, min(3, per_line // (longest + 6)))
    figure.legend(handles, wrapped, loc="outside lower center", ncols=columns)


def curve_figures(study: Study, task: Task) -> Iterator[Picture]:
    """The learning curves on a task, one picture for each family of methods."""
    styles = _styles(study)
    of_task = [cell for cell in study.cells if cell.task == task]
    for family in sorted({study.baseline.family(cell.method) for cell in of_task}):
        cells = [cell for cell in of_task if study.baseline.family(cell.method) == family]
        metrics = [name for name in _METRICS if any(name in cell.curves for cell in cells)]
        few = all(_has_few_seeds(cell) for cell in cells)
        statistics = {"mean": "mean"} if few else _STATISTICS
        height = 4.1 * len(metrics) + 0.5 + 0.1 * len(cells)
        figure = Figure(figsize=(7.5 if few else 11, height))
        rows = figure.subplots(len(metrics), len(statistics), squeeze=False, sharey="row")
        for axes_of_row, metric in zip(rows, metrics, strict=True):
            for axes, statistic in zip(axes_of_row, statistics, strict=True):
                for cell in cells:
                    if metric in cell.curves:
                        label = f"{study.method_labels[cell.method]} · n = "
                        label += counted(len(cell.runs), "seed")
                        label += "" if cell.complete else ", unfinished"
                        _draw_curve(axes, cell, metric, statistic, label, styles[cell.method])
                axes.set_title(f"{statistics[statistic]} over seeds")
                axes.xaxis.set_major_formatter(EngFormatter(sep=""))
                axes.xaxis.set_major_locator(MaxNLocator(6))
                axes.margins(x=0.01)
                axes.set_xlabel("environment steps")
                axes.grid()
            axes_of_row[0].set_ylabel(_METRICS[metric])
        name = f"{family_label(family)} on {study.task_labels[task]}"
        figure.suptitle(name)
        _add_legend(figure, rows[0][0])
        drawn = "mean" if few else "mean (left) and interquartile mean (right)"
        text = (
            f"{name}: {drawn} over seeds; the shade is the 95 % stratified-bootstrap interval at "
            "each step."
        )
        if any(_has_few_seeds(cell) for cell in cells):
            text += f" Hollow markers: fewer than {_ENOUGH_SEEDS} seeds, too few to compare."
        yield Picture(f"curves_{study.task_labels[task]}_{family}", figure, text)


def _has_few_seeds(cell: Cell) -> bool:
    return len(cell.runs) < _ENOUGH_SEEDS


def _draw_curve(
    axes: Axes, cell: Cell, metric: str, statistic: str, label: str, style: tuple[str, int]
) -> None:
    curve, (color, number) = cell.curves[metric], style
    steps, (values, low, high) = curve["step"], curve[statistic]
    stroke = {"linestyle": _STROKES[number % len(_STROKES)], "linewidth": 1.9, "color": color}
    marker = {"marker": "o", "markersize": 4.5, "markevery": max(1, len(steps) // 10)}
    marker["markerfacecolor"] = "white" if _has_few_seeds(cell) else color
    axes.plot(steps, values, label=label, **stroke, **marker)  # type: ignore[arg-type]
    if len(cell.runs) > 1:
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


def improvement_figures(study: Study) -> Iterator[Picture]:
    """All comparisons with the baseline, one picture for each family of methods."""
    styles = _styles(study)
    for family in sorted({study.baseline.family(c.method) for c in study.comparisons}):
        places = _rows(study, family)
        rows = [row for members in places.values() for row in members]
        methods = [method for method in styles if any(row.method == method for row in rows)]
        # A line for each row, and half a line between places.
        spans, top = [], 0.0
        for members in places.values():
            spans.append([top + line for line in range(len(members))])
            top += len(members) + 0.5
        heights = [y for span in spans for y in span]
        height = 1.8 + 0.27 * (heights[-1] + 1 + (len(methods) + 1) / 2)
        figure = Figure(figsize=(11, height))
        left, right = figure.subplots(1, 2, sharey=True)
        for y, row in zip(heights, rows, strict=True):
            color, number = styles[row.method]
            look = {"color": color, "marker": _MARKERS[number % len(_MARKERS)]}
            look["markerfacecolor"] = "white" if row.verdict == TOO_FEW else color
            if row.improvement is not None:
                draw_estimate(left, row.improvement, y, look)
            draw_estimate(right, row.probability, y, look)
            counts = " : ".join(map(str, row.seed_counts))
            right.text(1.06, y, counts, va="center", fontsize=9.5, color=GRAY)
            if row.paper is not None:
                left.plot(row.paper, y, marker="*", markersize=13, color=color, mfc="white")
        right.text(1.06, -0.85, "n : n of the baseline", va="bottom", fontsize=9.5, color=GRAY)
        left.axvline(100, color=GRAY, linewidth=1)
        right.axvline(0.5, color=GRAY, linewidth=1)
        left.set_xlabel("area under the curve, % of the baseline's")
        right.set_xlabel("probability of improvement")
        right.set_xlim(-0.03, 1.03)
        left.set_yticks([(span[0] + span[-1]) / 2 for span in spans], list(places))
        left.set_ylim(heights[-1] + 0.75, -0.75)
        for axes in (left, right):
            axes.grid(axis="x")
            for span in spans[1:]:
                axes.axhline(span[0] - 0.75, color="#d5d9de", linewidth=0.8)
        for name, (color, number) in {study.method_labels[m]: styles[m] for m in methods}.items():
            left.plot([], [], _MARKERS[number % len(_MARKERS)] + "-", color=color, label=name)
        name = family_label(family)
        text = (
            f"{name}: area under the curve in percent of the baseline's, and the probability that "
            "a seed beats a seed of the baseline, with 95 % stratified-bootstrap intervals."
        )
        if any(row.paper is not None for row in rows):
            left.plot([], [], "*", color=GRAY, mfc="white", markersize=13, label="the paper")
            text += " Stars are the numbers of the paper's Table 1."
        if any(row.verdict == TOO_FEW for row in rows):
            left.plot([], [], "o", color=GRAY, mfc="white", label="hollow: too few seeds")
        if any(math.isnan(row.probability.low) for row in rows):
            text += " Points without a bar have a single seed."
        _add_legend(figure, left)
        figure.suptitle(f"{name}: compared with {study.baseline}")
        yield Picture(f"improvement_{family}", figure, text)


def _rows(study: Study, family: str) -> dict[str, list[Result]]:
    """By place, the comparisons of all tasks, then the averages."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in [*study.comparisons, *study.wide_averages]:
        if study.baseline.family(result.method) == family:
            rows[result.place.replace(", ", "\n", 1)].append(result)
    return rows


def draw_estimate(axes: Axes, estimate: Estimate, y: float, look: dict[str, str]) -> None:
    """Draws a marker and a horizontal bar from the low to the high end."""
    axes.plot([estimate.low, estimate.high], [y, y], color=look["color"], linewidth=2.2)
    axes.plot(estimate.value, y, markersize=6.5, linestyle="none", **look)  # type: ignore[arg-type]
