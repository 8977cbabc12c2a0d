"""Prints what the samplers of the study do to the actor: means over the rows of ``train.csv``.

    python results/hopper_200k/diagnostics.py

Exploratory: it enters none of the tests of PROTOCOL.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vmfer_recipes.run.tables import read_columns

FOLDER = Path(__file__).parent / "runs" / "td3" / "Hopper-v4"
ARMS = (
    "uniform-fresh",
    "uniform-vmf_uncertainty",
    "uniform-vmf_rank",
    "per-fresh",
    "per-vmf_uncertainty",
)
COLUMNS = {  # by the column of train.csv: the heading of the table and the format
    "resultant_length_q10": ("R, 10 % quantile", "{:.2f}"),
    "resultant_length_q50": ("R, median", "{:.2f}"),
    "effective_fraction": ("effective sample size / N", "{:.2%}"),
    "gradient_cosine": ("cosine with a uniform batch", "{:.2f}"),
    "gradient_snr": ("signal-to-noise ratio", "{:.2f}"),
    "saturated_fraction": ("saturated action components", "{:.0%}"),
}


def centers(file: Path) -> dict[str, float]:
    """The mean of each column of a run, or the median of the signal-to-noise ratio (outliers)."""
    table = dict(read_columns(file))
    table["effective_fraction"] = table["effective_sample_size"] / table["stored_transitions"]
    return {
        name: float((np.nanmedian if name == "gradient_snr" else np.nanmean)(table[name]))
        for name in COLUMNS
    }


def main() -> None:
    """Prints one row for each arm."""
    print("| arm | runs |", " | ".join(heading for heading, _ in COLUMNS.values()), "|")
    print("|---|" + "---:|" * (1 + len(COLUMNS)))
    for arm in ARMS:
        runs = [centers(file) for file in sorted((FOLDER / arm).glob("seed*/train.csv"))]
        cells = [
            form.format(np.mean([run[name] for run in runs])) for name, (_, form) in COLUMNS.items()
        ]
        print(f"| `{arm}` | {len(runs)} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
