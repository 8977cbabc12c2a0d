"""The picture at the end of a run."""

from __future__ import annotations

import csv
from pathlib import Path

__all__ = ["draw_learning_curve"]


def draw_learning_curve(run_dir: Path) -> Path | None:
    """Draws ``learning_curve.png`` from the run's tables. Returns ``None`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: it needs matplotlib (`pip install matplotlib`).")
        return None
    evaluations = _columns(run_dir / "eval.csv")
    training = _columns(run_dir / "train.csv")
    panels = [n for n in ("resultant_length", "factor") if f"{n}_q50" in training]
    figure = Figure(figsize=(8, 4 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(
        1 + len(panels), sharex=True, squeeze=False, height_ratios=[2] + [1] * len(panels)
    )[:, 0]
    mean, spread = evaluations["return_mean"], evaluations["return_std"]
    axes[0].plot(evaluations["step"], mean, color="tab:blue", label="mean over episodes")
    axes[0].fill_between(
        evaluations["step"],
        [m - s for m, s in zip(mean, spread, strict=True)],
        [m + s for m, s in zip(mean, spread, strict=True)],
        color="tab:blue",
        alpha=0.2,
        label="± standard deviation over episodes",
    )
    axes[0].set_ylabel("evaluation return")
    axes[0].set_title(" / ".join(run_dir.parts[-4:]))
    axes[0].legend(loc="best", frameon=False)
    for axis, name in zip(axes[1:], panels, strict=True):
        axis.plot(training["step"], training[f"{name}_q50"], color="tab:orange", label="median")
        axis.fill_between(
            training["step"],
            training[f"{name}_q10"],
            training[f"{name}_q90"],
            color="tab:orange",
            alpha=0.2,
            label="10 % to 90 % of the actor's batch",
        )
        axis.set_ylabel({"factor": "factor p", "resultant_length": "agreement R"}[name])
    if panels:
        axes[1].legend(loc="best", frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("environment steps")
    path = run_dir / "learning_curve.png"
    figure.savefig(path, dpi=120)
    return path


def _columns(path: Path) -> dict[str, list[float]]:
    if not path.exists():
        return {}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name] or "nan") for row in rows] for name in rows[0]}
