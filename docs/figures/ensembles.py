"""Plots results/ensembles/curves.png and prints its table: our recipes beside published numbers.

python docs/figures/ensembles.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmfer_recipes.training.palette import BLUE, GREEN, VERMILION
from vmfer_recipes.training.tables import read_columns

RESULTS = Path(__file__).parents[2] / "results" / "ensembles"
COLORS = {"sac": BLUE, "redq": GREEN, "crossq": VERMILION}
NAMES = {"sac": "SAC", "redq": "REDQ", "crossq": "CrossQ"}
# Mean returns of ten seeds at 100,000 steps, from SimbaV2's public results (Lee et al., 2025).
PUBLISHED = {
    "Hopper-v4": {"sac": 1103, "redq": 2750, "crossq": 2764},
    "HalfCheetah-v4": {"sac": 6156, "redq": 7823, "crossq": 8112},
}


def draw_task(axis: Axes, task: str) -> None:
    """Draws the mean over seeds of each algorithm, and each seed as a thin line."""
    for algorithm, color in COLORS.items():
        files = sorted(RESULTS.glob(f"runs/{algorithm}/{task}/*/seed*/eval.csv"))
        tables = [read_columns(file) for file in files]
        if not tables:
            continue
        steps, returns = tables[0]["step"], np.stack([table["return_mean"] for table in tables])
        axis.plot(steps, returns.T, color=color, linewidth=0.6, alpha=0.6)
        axis.plot(steps, returns.mean(0), color=color, linewidth=2, label=NAMES[algorithm])
        final = returns[:, -3:].mean(1)
        seeds = ", ".join(f"{value:,.0f}" for value in final)
        published = PUBLISHED[task][algorithm]
        print(f"| {task} | {NAMES[algorithm]} | {final.mean():,.0f} | {seeds} | {published:,} |")
    axis.set_title(task)
    axis.set_xlabel("environment steps")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draws both tasks and prints the table."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    print("| task | algorithm | return | seeds | published, 100,000 steps |")
    print("|---|---|---:|---|---:|")
    for axis, task in zip(axes, PUBLISHED, strict=True):
        draw_task(axis, task)
    axes[0].set_ylabel("return of an evaluation")
    axes[0].legend(frameon=False)
    figure.savefig(RESULTS / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
