"""The paper's size: 256×256 units and batches of 256, with other seeds, by ordinary runs.

``python results/populations/paper_size.py --cells td3-A td3-B --arm power4`` trains ``fresh`` and
the arm with 10 seeds each, and adds what ``paper_size/`` does not have yet. Without arguments, it
prints the comparison of the finished runs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from analysis import Effects, head, load, p_value, row, shown
from study import CELLS, HERE, Cell, Run, add_rows, configuration, measured, read_table

SEEDS = range(11_000, 11_010)
TABLES = HERE / "paper_size"


def train(cell: Cell, arm: str, folder: Path) -> None:
    """Trains the runs of a cell that its table does not have, each like ``python recipes/td3.py``.

    Runs that were stopped resume.
    """
    from vmfer_recipes import sac, td3

    recipe = {"td3": td3, "sac": sac}[cell.algorithm]
    done = set(zip(*(read_table(TABLES, cell)[name] for name in ("arm", "seed")), strict=True))
    for run in (Run(name, seed) for seed in SEEDS for name in ("fresh", arm)):
        if run not in done:
            cfg = configuration(cell, run, folder)
            cfg.hidden, cfg.batch_size = [256, 256], 256
            recipe.main.__wrapped__(cfg)
            add_rows(TABLES, cell, [measured(cell, run, Path(cfg.run_dir), is_finished=True)])
            shutil.rmtree(cfg.run_dir)


def compare() -> None:
    """Prints the differences from ``fresh``, in its standard deviations."""
    runs = load(TABLES)
    effects, final = Effects(runs), Effects(runs, "final")
    head("256×256 units", "cell", "arm minus fresh", "pairs", "effect [95 %]", "p", "final return")
    for cell in effects.cells:
        for arm in sorted(set(runs.loc[runs["cell"] == cell, "arm"]) - {"fresh"}):
            values = effects.pooled(arm, cells=[cell])
            of_final = shown(final.pooled(arm, cells=[cell]))
            row(cell, arm, len(values), shown(values), p_value(values), of_final)


def main() -> None:
    """Trains, or prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--arm", default="power4")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper_size"))
    options = parser.parse_args()
    for cell in CELLS:
        if cell.name in options.cells:
            train(cell, options.arm, options.runs)
    if not options.cells:
        compare()


if __name__ == "__main__":
    main()
