"""Draws ``effects.png``: the effect of each dose in each cell, and on average, with 95 % intervals.

python results/populations/figure.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis import HERE, Effects, complete, interval, load
from matplotlib.figure import Figure
from study import NUM_SEEDS, ROUND

from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, VERMILION

SHOWN = {
    "power1": ("power 1 (the paper's first method)", GREEN, "o"),
    "rank": ("rank (the paper's second method)", BLUE, "s"),
    "power4": ("power 4", VERMILION, "D"),
    "anti": ("power −4 (prefers disagreement)", GRAY, "x"),
}


def draw(effects: Effects, file: Path) -> None:
    """Draws one row for the average and one for each cell."""
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    axes = figure.subplots()
    rows = [("average of all cells", effects.cells), *((cell, [cell]) for cell in effects.cells)]
    for i, (arm, (label, color, marker)) in enumerate(SHOWN.items()):
        values = [effects.pooled(arm, cells=cells) for _, cells in rows]
        means = [found.mean() for found in values]
        errors = [found.mean() - interval(found)[0] for found in values]
        heights = [-row + 0.27 - 0.18 * i for row in range(len(rows))]
        axes.errorbar(
            means, heights, xerr=errors, fmt=marker, color=color, label=label, ms=5, capsize=2
        )
    axes.axvline(0, color="black", lw=0.8)
    axes.axvspan(-0.1, 0.1, color="black", alpha=0.07, lw=0)
    axes.axhline(-0.5, color="black", lw=0.5)
    names = [name.replace("td3-", "TD3, ").replace("sac-", "SAC, ") for name, _ in rows]
    axes.set_yticks([-row for row in range(len(rows))], names)
    axes.set_xlabel(
        "difference from uniform actor batches in the area under the learning curve,\n"
        "in standard deviations over seeds (gray: too small to matter, by the protocol)"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.1), ncols=2, frameon=False)
    figure.savefig(file, dpi=130)


def main() -> None:
    """Draws the effects of the completed rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=NUM_SEEDS // ROUND)
    runs = complete(load(HERE / "tables"), parser.parse_args().rounds)
    draw(Effects(runs), HERE / "effects.png")


if __name__ == "__main__":
    main()
