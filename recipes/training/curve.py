"""The learning curve, plotted at the end of a run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_learning_curve"]

# Columns of train.csv that have quantiles, and their labels.
_QUANTILES = {"resultant_length": "agreement R", "factor": "factor p"}


def draw_learning_curve(run_dir: Path) -> Path | None:
    """Plots ``learning_curve.png`` from the run's tables. Returns ``None`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No learning curve was plotted: it requires matplotlib (`pip install matplotlib`).")
        return None
    evaluations = _columns(run_dir / "eval.csv")
    training = _columns(run_dir / "train.csv")
    quantiles = [name for name in _QUANTILES if f"{name}_q50" in training]
    has_success = any(value == value for value in evaluations["success_rate"])  # not NaN
    heights = [2] + [1] * (has_success + len(quantiles))
    figure = Figure(figsize=(8, 2 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_returns(axes[0], evaluations)
    axes[0].set_title(" / ".join(run_dir.parts[-4:]), parse_math=False)
    if has_success:
        axes[1].plot(evaluations["step"], evaluations["success_rate"], color="tab:green")
        axes[1].set_ylim(-0.05, 1.05)
        axes[1].set_ylabel("success rate")
    for axis, name in zip(axes[1 + has_success :], quantiles, strict=True):
        _draw_quantiles(axis, training, name)
        if name == quantiles[0]:
            axis.legend(loc="best", frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("environment steps")
    path = run_dir / "learning_curve.png"
    figure.savefig(path, dpi=120)
    return path


def _draw_returns(axis: Axes, evaluations: dict[str, list[float]]) -> None:
    mean, spread = evaluations["return_mean"], evaluations["return_std"]
    axis.plot(evaluations["step"], mean, color="tab:blue", label="mean over episodes")
    axis.fill_between(
        evaluations["step"],
        [m - s for m, s in zip(mean, spread, strict=True)],
        [m + s for m, s in zip(mean, spread, strict=True)],
        color="tab:blue",
        alpha=0.2,
        label="± standard deviation over episodes",
    )
    axis.set_ylabel("evaluation return")
    axis.legend(loc="best", frameon=False)


def _draw_quantiles(axis: Axes, training: dict[str, list[float]], name: str) -> None:
    axis.plot(training["step"], training[f"{name}_q50"], ".-", color="tab:orange", label="median")
    axis.fill_between(
        training["step"],
        training[f"{name}_q10"],
        training[f"{name}_q90"],
        color="tab:orange",
        alpha=0.2,
        label="10 % to 90 % of the actor's batch",
    )
    axis.set_ylabel(_QUANTILES[name])


def _columns(path: Path) -> dict[str, list[float]]:
    if not path.exists():
        return {}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name] or "nan") for row in rows] for name in rows[0]}
