"""Plots results/ensembles/curves.png and prints its table: our recipes beside other results.

python docs/figures/ensembles.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmfer_recipes.training.palette import BLUE, GRAY, GREEN, VERMILION
from vmfer_recipes.training.tables import read_columns

RESULTS = Path(__file__).parents[2] / "results" / "ensembles"
COLORS = {"SAC": BLUE, "REDQ": GREEN, "CrossQ": VERMILION, "TQC": BLUE, "TQC, sb3-contrib": GRAY}
FOLDERS = {
    "SAC": "runs/sac",
    "REDQ": "runs/redq",
    "CrossQ": "runs/crossq",
    "TQC": "runs/tqc",
    "TQC, sb3-contrib": "peers/tqc",
}
# Mean returns of ten seeds at 100,000 steps, from SimbaV2's public results (Lee et al., 2025).
PUBLISHED = {
    "Hopper-v4": {"SAC": 1103, "REDQ": 2750, "CrossQ": 2764},
    "HalfCheetah-v4": {"SAC": 6156, "REDQ": 7823, "CrossQ": 8112},
}
# The panels: a task, and what is compared on it.
PANELS = [
    ("Hopper-v4", ["SAC", "REDQ", "CrossQ"]),
    ("HalfCheetah-v4", ["SAC", "REDQ", "CrossQ"]),
    ("Hopper-v4", ["TQC", "TQC, sb3-contrib"]),
]


def draw_panel(axis: Axes, task: str, names: list[str]) -> None:
    """Draws the mean over seeds of each algorithm, and each seed as a thin line."""
    for name in names:
        files = sorted(RESULTS.glob(f"{FOLDERS[name]}/{task}/**/seed*/eval.csv"))
        tables = [read_columns(file) for file in files]
        if not tables:
            continue
        color = COLORS[name]
        steps, returns = tables[0]["step"], np.stack([table["return_mean"] for table in tables])
        axis.plot(steps, returns.T, color=color, linewidth=0.6, alpha=0.6)
        axis.plot(steps, returns.mean(0), color=color, linewidth=2, label=name)
        final = returns[:, -3:].mean(1)
        seeds = ", ".join(f"{value:,.0f}" for value in final)
        published = PUBLISHED[task].get(name)
        beside = "" if published is None else f"{published:,}"
        print(f"| {task} | {name} | {steps[-1]:,.0f} | {final.mean():,.0f} | {seeds} | {beside} |")
    axis.set_title(task)
    axis.set_xlabel("environment steps")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def main() -> None:
    """Draws all panels and prints the table."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    print("| task | algorithm | steps | return | seeds | published, 100,000 steps |")
    print("|---|---|---:|---:|---|---:|")
    for axis, (task, names) in zip(axes, PANELS, strict=True):
        draw_panel(axis, task, names)
    axes[0].set_ylabel("return of an evaluation")
    figure.savefig(RESULTS / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
