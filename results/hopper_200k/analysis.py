"""Tests the hypotheses of PROTOCOL.md, once all its runs are finished.

Prints the tables and writes ``curves.png``. It was committed before the runs were compared. While
a run is missing, it computes nothing, because the protocol forbids an early look.

    python results/hopper_200k/analysis.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from vmfer_recipes.report.inference import Estimate, holm, permutation_p
from vmfer_recipes.report.runs import area
from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, ORANGE, VERMILION
from vmfer_recipes.run.tables import read_columns

FOLDER = Path(__file__).parent
RUNS, SUPERSEDED = "runs", "superseded"
ARMS = {
    "A": "uniform-fresh",
    "B": "uniform-vmf_uncertainty",
    "C": "uniform-vmf_rank",
    "D": "per-fresh",
    "E": "per-vmf_uncertainty",
}
COLORS = {"A": GRAY, "B": BLUE, "C": VERMILION, "D": GREEN, "E": ORANGE}
SEEDS = range(6)
STEPS = np.arange(0, 200_001, 5000)
HYPOTHESES = {"H1": ("B", "A"), "H2": ("C", "A"), "H3": ("D", "A"), "H4": ("E", "D")}
DIVERGED: set[Path] = set()  # the evaluations of runs that ended early, if there are any
RESAMPLES = 50_000
LEVEL = 0.05
AS_LARGE_AS_THE_PAPERS = 1.5  # an upper end below this excludes an early effect of that size


class Comparison(NamedTuple):
    """The numbers that the protocol reports for two arms."""

    ratio: Estimate
    improvement: Estimate
    paired_difference: Estimate
    p: float
    corrected_p: float

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p-value is below the level."""
        return self.corrected_p < LEVEL


def file_of(folder: Path, arm: str, seed: int) -> Path:
    """The evaluations of a run."""
    return folder / "td3" / "Hopper-v4" / ARMS[arm] / f"seed{seed}" / "eval.csv"


def read_returns(file: Path) -> np.ndarray:
    """The return of every evaluation. Those that a diverged run lacks are set to its last one."""
    table = read_columns(file)
    count = len(table["step"])
    if count == 0 or not np.array_equal(table["step"], STEPS[:count]):
        raise ValueError(f"{file} was not evaluated every 5,000 steps up to 200,000.")
    if count < len(STEPS) and file not in DIVERGED:
        raise ValueError(f"{file} ends at step {STEPS[count - 1]:,} and is not one of DIVERGED.")
    return np.append(table["return_mean"], np.full(len(STEPS) - count, table["return_mean"][-1]))


def compare(areas: dict[str, np.ndarray]) -> dict[str, Comparison]:
    """Tests all hypotheses.

    Args:
        areas: the areas under the curves of each arm, in the order of the seeds.
    """
    pairs = {name: (areas[arm], areas[other]) for name, (arm, other) in HYPOTHESES.items()}
    p_values = [permutation_p(np.log(x), np.log(y)) for x, y in pairs.values()]
    found = {}
    for (name, (x, y)), p, corrected in zip(pairs.items(), p_values, holm(p_values), strict=True):
        found[name] = Comparison(*_bootstrap(x, y), _paired(x - y), p, corrected)
    return found


def _paired(differences: np.ndarray) -> Estimate:
    """The mean of paired differences, resampling the pairs."""
    resampling = {"n_resamples": RESAMPLES, "method": "percentile", "rng": np.random.default_rng(0)}
    found = stats.bootstrap((differences,), np.mean, **resampling)
    return Estimate(float(differences.mean()), *map(float, found.confidence_interval))


def _bootstrap(x: np.ndarray, y: np.ndarray) -> tuple[Estimate, Estimate]:
    """The ratio of means and the probability of improvement, resampling each arm separately."""
    generator = np.random.default_rng(0)
    of_x, of_y = (generator.integers(len(z), size=(RESAMPLES, len(z))) for z in (x, y))
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    ratios = x[of_x].mean(1) / y[of_y].mean(1)
    improvements = wins[of_x[:, :, None], of_y[:, None, :]].mean((1, 2))
    return (
        Estimate(x.mean() / y.mean(), *np.percentile(ratios, [2.5, 97.5])),
        Estimate(wins.mean(), *np.percentile(improvements, [2.5, 97.5])),
    )


def readings(found: dict[str, Comparison]) -> list[str]:
    """What the protocol takes the outcome to mean."""
    lines = []
    modes = {"H1": "uncertainty", "H2": "rank"}
    for name, mode in modes.items():
        if found[name].is_significant:
            is_better = found[name].ratio.value > 1
            verdict = "the paper's claim is supported" if is_better else "this mode harms"
            lines.append(f"{name} ({mode} weights): {verdict} on this task.")
    if not lines:
        highest = max(found[name].ratio.high for name in modes)
        lines.append(
            "H1, H2: an early effect as large as the paper's figure suggests is not seen; a "
            "smaller one remains possible."
            if highest < AS_LARGE_AS_THE_PAPERS
            else "H1, H2: undecided at this size."
        )
    if found["H3"].is_significant:
        helps = "helps, so a launcher that turns it on can create the impression of a gain"
        lines.append(f"H3: PER alone {helps if found['H3'].ratio.value > 1 else 'harms'}.")
    if found["H4"].is_significant:
        is_better = found["H4"].ratio.value > 1
        lines.append(f"H4: vMFER {'adds to PER' if is_better else 'harms beside PER'}.")
    return lines


def tables(returns: dict[str, np.ndarray], earlier: dict[str, float]) -> str:
    """All numbers as Markdown.

    Args:
        returns: the returns of each arm, ``[seeds, evaluations]``.
        earlier: the areas of the superseded runs of seed 0.
    """
    areas = {arm: np.array([area(STEPS, run) for run in runs]) for arm, runs in returns.items()}
    lines = ["| arm | AUC | AUC of the seeds | return at 200,000 | superseded AUC of seed 0 |"]
    lines.append("|---|---:|---|---:|---:|")
    for arm, scores in areas.items():
        seeds = ", ".join(f"{score:,.0f}" for score in scores)
        end = returns[arm][:, -3:].mean()
        old = f"{earlier[arm]:,.0f}" if arm in earlier else ""
        label = ARMS[arm].replace("-", ", ")
        lines.append(f"| {arm}: {label} | {scores.mean():,.0f} | {seeds} | {end:,.0f} | {old} |")
    lines += ["", "| | ratio of AUC | P(improvement) | paired difference | p | corrected p |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    found = compare(areas)
    for name, comparison in found.items():
        arm, other = HYPOTHESES[name]
        cells = [
            f"{name}: {arm} against {other}",
            comparison.ratio.shown("{:.2f}"),
            comparison.improvement.shown("{:.2f}"),
            comparison.paired_difference.shown("{:+,.0f}"),
            f"{comparison.p:.3f}",
            f"{comparison.corrected_p:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *readings(found)])


def draw(returns: dict[str, np.ndarray], file: Path) -> None:
    """Draws the mean of each arm, and each seed as a thin line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axis, arms in zip(figure.subplots(1, 2, sharey=True), ("ABC", "ADE"), strict=True):
        for arm in arms:
            axis.plot(STEPS, returns[arm].T, color=COLORS[arm], linewidth=0.5, alpha=0.5)
            label = ARMS[arm].replace("-", ", ")
            axis.plot(STEPS, returns[arm].mean(0), color=COLORS[arm], linewidth=2, label=label)
        axis.set_xlabel("environment steps")
        axis.set_xticks(STEPS[::10], [f"{step:,}" for step in STEPS[::10]])
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.axes[0].set_ylabel("return of an evaluation")
    figure.savefig(file, dpi=110)


def main(folder: Path = FOLDER) -> None:
    """Prints the tables and draws the curves, or says which runs are missing."""
    files = {arm: [file_of(folder / RUNS, arm, seed) for seed in SEEDS] for arm in ARMS}
    missing = [file for runs in files.values() for file in runs if not file.exists()]
    if missing:
        runs = ", ".join(f"{file.parts[-3]}/{file.parts[-2]}" for file in missing)
        sys.exit(f"{len(missing)} of 30 runs are missing, so nothing is computed: {runs}.")
    returns = {arm: np.stack([read_returns(file) for file in runs]) for arm, runs in files.items()}
    earlier = {arm: file_of(folder / SUPERSEDED, arm, 0) for arm in ARMS}
    print(
        tables(
            returns,
            {
                arm: area(STEPS, read_returns(file))
                for arm, file in earlier.items()
                if file.exists()
            },
        )
    )
    draw(returns, folder / "curves.png")


if __name__ == "__main__":
    main()
