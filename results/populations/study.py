"""The runs of the study: what is run, in which order, and the tables of the finished runs.

``python results/populations/study.py`` trains what the tables in ``tables/`` do not have yet, in
this process, and adds it to them. It can be stopped and started again at any time, also on another
machine that has the tables. ``--worker 0/2`` and ``--worker 1/2`` share the work of two processes.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
FIRST_SEED, NUM_SEEDS, ROUND = 10_000, 96, 8


@dataclass(frozen=True)
class Cell:
    """An algorithm on a task, with the doses of the controls that match power 4 in this cell."""

    algorithm: str
    task: str
    steps: int
    old: float  # sampler.exponent of sampler=old
    saturated: float  # sampler.power of sampler=saturated
    options: str = ""
    has_per: bool = False

    @property
    def name(self) -> str:
        """The name of its table."""
        return f"{self.algorithm}-{self.task}"


_SUITE = "env.backend=dm_control env.action_repeat="
_LONG = "log_interval=1000"  # the length of an episode
CELLS = (
    Cell("td3", "GoalReaching3-v0", 5_000, 1.91, 2.3),
    Cell("td3", "GoalReaching6-v0", 8_000, 2.08, 2.6),
    Cell("td3", "PlanarQuadrotor-v0", 10_000, 1.69, 2.1),
    Cell("td3", "Reacher-v5", 6_000, 1.13, 0.0),
    Cell("td3", "Pusher-v5", 8_000, 1.20, 0.0),
    Cell("td3", "Walker2d-v4", 12_000, 1.57, 3.1),
    Cell("td3", "HalfCheetah-v4", 15_000, 1.24, 0.0, _LONG),
    Cell("td3", "cheetah-run", 12_000, 1.47, 0.0, f"{_SUITE}4"),
    Cell("td3", "walker-stand", 10_000, 1.55, 0.0, f"{_SUITE}2"),
    Cell("sac", "GoalReaching6-v0", 8_000, 1.54, 2.7),
    Cell("sac", "Pusher-v5", 10_000, 1.35, 2.8, has_per=True),
    Cell("sac", "Reacher-v5", 6_000, 1.33, 0.0),
)
ARMS = {
    "fresh": "sampler=fresh",
    "rank": "sampler=vmf_rank",
    "power4": "sampler=vmf_power sampler.power=4",
    "power1": "sampler=vmf_uncertainty",
    "pre_tanh": "sampler=vmf_power sampler.power=4 directions=pre_tanh",
    "anti": "sampler=anti_vmf",
    "old": "sampler=old sampler.exponent={old}",
    "saturated": "sampler=saturated sampler.power={saturated}",
    "per": "sampler=fresh replay=per",
}
CONFIRMATORY = ("fresh", "rank", "power4")  # with all seeds; the others have the first half


class Run(NamedTuple):
    """One run of a cell."""

    arm: str
    seed: int


def rounds(number: int = NUM_SEEDS // ROUND) -> Iterator[tuple[Cell, list[Run]]]:
    """The runs in their order: each round has all cells, and the same seeds in all of them."""
    for first in range(0, number * ROUND, ROUND):
        arms = tuple(ARMS) if first < NUM_SEEDS // 2 else CONFIRMATORY
        seeds = range(FIRST_SEED + first, FIRST_SEED + first + ROUND)
        for cell in CELLS:
            chosen = [arm for arm in arms if arm != "per" or cell.has_per]
            yield cell, [Run(arm, seed) for arm in chosen for seed in seeds]


def pilot(arms: Sequence[str]) -> Iterator[tuple[Cell, list[Run]]]:
    """Runs with seeds that the study does not use."""
    for cell in CELLS:
        yield cell, [Run(arm, seed) for arm in arms for seed in range(100, 104)]


def print_doses(tables: Path) -> None:
    """Prints the doses with which the controls match power 4 in the pilot.

    The age of ``old`` is k/(1+k) on average. The saturation of ``saturated`` is a parabola through
    the mean saturations of two doses and of ``fresh``, dose 0, which is also the dose in cells
    where power 4 does not raise the saturation.
    """
    for cell in CELLS:
        means = read_table(tables, cell).groupby("arm")[["age", "saturation"]].mean()
        age, saturation = means.loc["power4"]
        runs = {arm: value for arm, value in means["saturation"].items() if ":" in arm}
        doses = [0.0, *(float(arm.split(":")[1]) for arm in runs)]
        parabola = np.polyfit(doses, [means["saturation"]["fresh"], *runs.values()], 2)
        grid = np.arange(0, max(doses), 0.1)
        found = grid[np.abs(np.polyval(parabola, grid) - saturation).argmin()]
        found = found if saturation > means["saturation"]["fresh"] else 0.0
        print(f"{cell.name}: old {age / (1 - age):.2f}, saturated {found:.1f}")


def overrides(cell: Cell, arm: str) -> list[str]:
    """The command line of an arm in a cell."""
    key = "env.name" if "env.backend" in cell.options else "env"
    common = f"+experiment=population_study {key}={cell.task} {cell.options}"
    name, _, dose = arm.partition(":")  # a dose of the pilot, as in saturated:6
    doses = {"old": dose or cell.old, "saturated": dose or cell.saturated}
    return [*common.split(), f"total_frames={cell.steps}", *ARMS[name].format(**doses).split()]


@functools.cache
def _composed(cell: Cell, arm: str) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return compose(cell.algorithm, overrides(cell, arm))


def configuration(cell: Cell, run: Run, folder: Path) -> Any:
    """The configuration of a run."""
    from vmfer_recipes.config.training import to_config

    cfg = _composed(cell, run.arm).copy()
    cfg.seed = run.seed
    cfg.run_dir = str(folder / cell.name / run.arm / f"seed{run.seed}")
    return to_config(cfg)


def train(cell: Cell, runs: Sequence[Run], folder: Path, tables: Path) -> None:
    """Trains the runs that a table does not have, adds them to it, and deletes their files."""
    from vmfer_recipes.config.launch import quiet_torchrl
    from vmfer_recipes.population.served import check_served, grouped
    from vmfer_recipes.population.training import train_together

    quiet_torchrl()
    known = read_table(tables, cell)
    done = {Run(*pair) for pair in zip(known["arm"], known["seed"], strict=True)}
    missing = [run for run in runs if run not in done]
    configs = [configuration(cell, run, folder) for run in missing]
    for cfg in configs:
        check_served(cfg)
    for group in grouped(configs, size=32):
        rows = []
        errors = train_together([configs[i] for i in group])
        for i, error in zip(group, errors, strict=True):
            if error is not None and "diverged" not in str(error):
                raise error
            rows.append(measured(cell, missing[i], Path(configs[i].run_dir), error is None))
        add_rows(tables, cell, rows)
        for i in group:
            shutil.rmtree(configs[i].run_dir)


def measured(cell: Cell, run: Run, run_dir: Path, is_finished: bool) -> dict[str, Any]:
    """The row of a run in its table.

    The area is the mean, over intervals of equal length, of the mean return of the training
    episodes that end in an interval. An interval without an end has the value of the previous one.
    Intervals that a diverged run did not complete have its lowest value.
    """
    table = pd.read_csv(run_dir / "train.csv").set_index("step")
    interval = int(table.index[0]) - 1000
    completed = table["episode_return"].ffill().bfill()
    steps = range(int(table.index[0]), cell.steps + 1, interval)
    returns = completed.reindex(steps, fill_value=completed.min())
    assert is_finished <= (len(completed) == len(returns)), f"{run_dir} is not complete"
    return {
        "arm": run.arm,
        "seed": run.seed,
        "status": "finished" if is_finished else "diverged",
        "auc": returns.mean(),
        "final": returns.iloc[-max(len(returns) // 10, 1) :].mean(),
        "episodes": int(table["num_episodes"].sum()),
        "age": table["relative_age"].mean(),
        "saturation": table["saturation"].mean(),
        "effective_fraction": (table["effective_sample_size"] / table["stored_transitions"]).mean(),
        "curve": " ".join(f"{value:.4g}" for value in returns),
    }


def read_table(tables: Path, cell: Cell) -> pd.DataFrame:
    """The table of a cell; empty if there is none."""
    file = tables / f"{cell.name}.csv"
    return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["arm", "seed"])


def add_rows(tables: Path, cell: Cell, rows: Iterable[dict[str, Any]]) -> None:
    """Adds rows to the table of a cell, sorted by arm and seed."""
    tables.mkdir(parents=True, exist_ok=True)
    before, added = read_table(tables, cell), pd.DataFrame(rows)
    table = added if before.empty else pd.concat([before, added])
    partial = tables / f"{cell.name}.csv.partial"
    table.sort_values(["arm", "seed"]).to_csv(partial, index=False, float_format="%.7g")
    os.replace(partial, tables / f"{cell.name}.csv")


def main() -> None:
    """Runs the study, the part of one worker, or a pilot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", default="0/1", help="which of how many: 0/2 and 1/2")
    parser.add_argument("--runs", type=Path, default=Path("runs/population_study"))
    parser.add_argument("--cells", nargs="+", metavar="NAME", default=[cell.name for cell in CELLS])
    parser.add_argument("--doses", action="store_true", help="print the doses of the controls")
    parser.add_argument("--pilot", nargs="+", metavar="ARM", help="arms, as in saturated:6")
    options = parser.parse_args()
    if options.doses:
        return print_doses(HERE / "pilot")
    worker, workers = map(int, options.worker.split("/"))
    tables = HERE / ("pilot" if options.pilot else "tables")
    for cell, runs in pilot(options.pilot) if options.pilot else rounds():
        if cell.name in options.cells[worker::workers]:
            train(cell, runs, options.runs, tables)


if __name__ == "__main__":
    main()
