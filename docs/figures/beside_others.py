"""Plots the learning curves of a study beside those of other libraries, and prints its table.

Writes ``curves.png`` into the folder of the study.

    python docs/figures/beside_others.py ensembles
    python docs/figures/beside_others.py parity
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, VERMILION
from vmfer_recipes.run.tables import read_columns

RESULTS = Path(__file__).parents[2] / "results"


class Curve(NamedTuple):
    """The runs of one algorithm on one task, and what others report for it."""

    name: str
    folder: str
    color: str
    published: str = ""


SB3 = "Stable-Baselines3"
PLAIN = "norm_None-dropout_0.0-utd"
# The panels of each study: a task, and its curves.
STUDIES: dict[str, list[tuple[str, list[Curve]]]] = {
    # Published: means of ten seeds at 100,000 steps, from SimbaV2's public results.
    "ensembles": [
        (
            "Hopper-v4",
            [
                Curve("SAC", "runs/sac", BLUE, "1,103"),
                Curve("REDQ", "runs/redq", GREEN, "2,750"),
                Curve("CrossQ", "runs/crossq", VERMILION, "2,764"),
            ],
        ),
        (
            "HalfCheetah-v4",
            [
                Curve("SAC", "runs/sac", BLUE, "6,156"),
                Curve("REDQ", "runs/redq", GREEN, "7,823"),
                Curve("CrossQ", "runs/crossq", VERMILION, "8,112"),
            ],
        ),
        (
            "Hopper-v4",
            [Curve("TQC", "runs/tqc", BLUE), Curve("TQC, sb3-contrib", "peers/tqc", GRAY)],
        ),
    ],
    "critics": [
        (
            "Hopper-v4",
            [
                Curve("TD3", f"runs/td3-{PLAIN}_1", BLUE),
                Curve("TD3, LayerNorm critics", "runs/td3-norm_True-dropout_0.0-utd_1", VERMILION),
            ],
        ),
        (
            "InvertedPendulum-v4",
            [
                Curve("SAC, 5 updates per step", f"runs/sac-{PLAIN}_5", BLUE),
                Curve(
                    "DroQ, 5 updates per step", "runs/sac-norm_True-dropout_0.01-utd_5", VERMILION
                ),
            ],
        ),
    ],
    # Published: LA3P's ten-seed curves at 100,000 steps, and SimbaV2's public results.
    "parity": [
        (
            "HalfCheetah-v4",
            [
                Curve("TD3", "runs/td3", BLUE, "4,209 ± 415 (LA3P)"),
                Curve(f"TD3, {SB3}", "peers/td3", GRAY),
            ],
        ),
        (
            "HalfCheetah-v4",
            [
                Curve("SAC", "runs/sac", VERMILION, "3,645 ± 188 (LA3P), 6,156 (SimbaV2)"),
                Curve(f"SAC, {SB3}", "peers/sac", GRAY),
            ],
        ),
    ],
}


def files_of(study: str, task: str, curve: Curve) -> list[Path]:
    """The tables of the finished runs of a curve."""
    return sorted(RESULTS.glob(f"{study}/{curve.folder}/{task}/**/seed*/eval.csv"))


def draw_panel(axis: Axes, study: str, task: str, curves: list[Curve]) -> None:
    """Draws the mean over seeds of each algorithm, and each seed as a thin line."""
    for curve in curves:
        tables = [read_columns(file) for file in files_of(study, task, curve)]
        steps, returns = tables[0]["step"], np.stack([table["return_mean"] for table in tables])
        axis.plot(steps, returns.T, color=curve.color, linewidth=0.6, alpha=0.6)
        axis.plot(steps, returns.mean(0), color=curve.color, linewidth=2, label=curve.name)
        final = returns[:, -3:].mean(1)
        cells = [task, curve.name, f"{steps[-1]:,.0f}", f"{final.mean():,.0f}"]
        cells += [", ".join(f"{value:,.0f}" for value in final), curve.published]
        print("| " + " | ".join(cells) + " |")
    axis.set_title(task)
    axis.set_xlabel("environment steps")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def main() -> None:
    """Draws the panels of a study and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    study = parser.parse_args().study
    panels = [
        (task, found)
        for task, curves in STUDIES[study]
        if (found := [curve for curve in curves if files_of(study, task, curve)])
    ]
    figure = Figure(figsize=(max(5, 4 * len(panels)), 3.4), layout="constrained")
    print("| task | algorithm | steps | return | seeds | published, 100,000 steps |")
    print("|---|---|---:|---:|---|---:|")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (task, curves) in zip(axes, panels, strict=True):
        draw_panel(axis, study, task, curves)
    axes[0].set_ylabel("return of an evaluation")
    figure.savefig(RESULTS / study / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
