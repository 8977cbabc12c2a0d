"""The figures of forks: a forest plot, and the difference by the power of the factor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmfer_recipes.fork.results import Comparison
from vmfer_recipes.run.curve import BLUE, GRAY, VERMILION

__all__ = ["dose_figure", "forest_figure"]

# A name with dollar signs is not a formula.
matplotlib.rcParams["text.parse_math"] = False

_LEVEL = 0.05


def forest_figure(comparisons: Sequence[Comparison], reference: str) -> Figure:
    """The difference of each arm from the reference, with its interval.

    Args:
        comparisons: the arms, from top to bottom.
        reference: the name of the reference.
    """
    figure = Figure(figsize=(8, 1.4 + 0.42 * len(comparisons)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=GRAY, linewidth=1)
    for y, each in enumerate(comparisons):
        is_clear = each.corrected_p < _LEVEL
        color = VERMILION if each.difference.value < 0 else BLUE
        if not math.isnan(each.difference.low):
            span = [each.difference.low, each.difference.high]
            axes.plot(span, [y, y], color=color, linewidth=2.2)
        axes.plot(
            each.difference.value,
            y,
            "o",
            color=color,
            markersize=7.5,
            markerfacecolor=color if is_clear else "white",
            markeredgewidth=1.8,
        )
        axes.annotate(
            f"p (Holm) = {each.corrected_p:.3f}, n = {each.pairs}",
            (1.02, y),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=10,
            color=GRAY,
        )
    axes.set_yticks(range(len(comparisons)), [each.arm for each in comparisons])
    axes.set_ylim(len(comparisons) - 0.4, -0.6)
    axes.set_xlabel(f"difference in return from {reference} (filled: p < {_LEVEL} after Holm)")
    _finish(axes, "x")
    return figure


def dose_figure(
    comparisons: Sequence[Comparison], reference: str, doses: dict[str, float]
) -> Figure:
    """The difference from the reference by the power of the factor, with intervals.

    Args:
        comparisons: the arms.
        reference: the name of the reference.
        doses: the powers of the arms that have one, by name, including the reference.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=GRAY, linewidth=1)
    points = [(doses[c.arm], c.difference) for c in comparisons if c.arm in doses]
    line = [(dose, difference.value) for dose, difference in points]
    if reference in doses:
        line.append((doses[reference], 0.0))
        axes.plot(doses[reference], 0, "D", color=GRAY, label=f"{reference} (reference)", zorder=4)
    axes.plot(*zip(*sorted(line), strict=True), color=BLUE, linewidth=1.2, alpha=0.6)
    for dose, difference in points:
        if not math.isnan(difference.low):
            axes.plot([dose, dose], [difference.low, difference.high], color=BLUE, linewidth=2.2)
        axes.plot(dose, difference.value, "o", color=BLUE, markersize=7)
    # Powers differ by orders of magnitude, and may be negative.
    axes.set_xscale("symlog", linthresh=1)
    ticks = sorted({dose for dose, _ in line})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("power β of the factor, P ∝ p^β (0: uniform, 1: the paper)")
    axes.set_ylabel(f"difference in return from {reference}")
    if reference in doses:
        axes.legend(frameon=False)
    _finish(axes, "both")
    return figure


def _finish(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axes.spines[["top", "right"]].set_visible(False)
