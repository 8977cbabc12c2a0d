"""The oracle ladder: can a choice of states help at all, and which signal finds the right ones?

The plan, written before its first run. Exploratory: few seeds, no correction for many signals.

- *Runs*: TD3 with ``sampler=fresh`` and the settings of results/populations, seeds 200 to 203, on
  the tasks below, with checkpoints at one third, two thirds and the end.
- *Rung 1*: from each checkpoint, 50 stored states; the true gradient of the policy's value by the
  action, from rollouts of 200 steps. A state is known if the gradients of two step sizes (0.05 and
  0.025) have a cosine above 0.9. In known states, how well does a signal predict that the critics'
  direction is right (AUROC of cosine > 0), and how right (rank correlation)? A signal predicts if
  the interval of its AUROC is above 0.5.
- *Rung 2*: 200 updates of the actor with frozen critics on these states, drawn uniformly, by the
  true cosine (the oracle, an upper bound), or by a signal with the oracle's probabilities. The
  oracle helps on a task if the interval of its return minus that of uniform is above 0; then, a
  signal that does not help is at fault. If not, the choice of states was not shown to matter.
- *Rung 3*: 2,000 steps of live training from the first checkpoint with the two samplers whose
  signals have the highest AUROC, averaged over tasks, among the signals that have a sampler.

Intervals: 95 %, Student's t over seeds. ``python results/ladder/ladder.py --run runs/ladder``
does what is missing, seed by seed, and writes the tables; without arguments, it prints them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from pathlib import Path

import pandas as pd
from scipy import stats

HERE = Path(__file__).parent
SEEDS = range(200, 204)
SUITE = "env.name=reacher-easy env.backend=dm_control env.action_repeat=2"
TASKS = {  # the environment and the steps of each task
    "GoalReaching3-v0": ("env=GoalReaching3-v0", 4_500),
    "GoalReaching6-v0": ("env=GoalReaching6-v0", 7_500),
    "PlanarQuadrotor-v0": ("env=PlanarQuadrotor-v0", 10_500),
    "Reacher-v5": ("env=Reacher-v5", 6_000),
    "reacher-easy": (SUITE, 15_000),
}
ORACLE = "states=50 horizon=200 updates=200 draws=1 num_eval_episodes=10"
FORKS = "steps=2000 draws=1 num_eval_episodes=20"
NAMES = ("checkpoints", "signals", "updates", "forks")
SAMPLERS = {
    "factor": "vmf_power sampler.power=4",
    "pre_tanh_factor": "vmf_power sampler.power=4 directions=pre_tanh",
    "gradient_norm": "gradient_norm",
    "td_error": "inverse_td",
    "age": "old",
    "saturation": "saturated",
    "on_policy_distance": "on_policy",
}


def call(program: str, *arguments: str) -> None:
    """Runs a program of the recipes."""
    sys.argv = [program, *arguments]
    importlib.import_module(f"vmfer_recipes.{program}").main()


def run(out: Path) -> None:
    """Trains, climbs the rungs, and writes the tables after each step."""
    for task, (environment, steps) in TASKS.items():
        common = f"+experiment=population_study {environment} total_frames={steps} sampler=fresh"
        kept = f"keep_checkpoints_at=[{steps // 3},{2 * steps // 3},{steps}]"
        seeds = f"seed=range({SEEDS[0]},{SEEDS[-1] + 1}) hydra/launcher=population"
        where = f"run_dir={out}/{task}/seed${{seed}} hydra.sweep.dir={out}/sweeps"
        if not all((out / task / f"seed{seed}/finished").exists() for seed in SEEDS):
            call("td3", "-m", *f"{common} {kept} {seeds} {where}".split())
    for seed, task in itertools.product(SEEDS, TASKS):
        folder = out / "oracle" / task / f"seed{seed}"
        if not (folder / "oracle.md").exists():
            call("oracle", f"run={out}/{task}/seed{seed}", *ORACLE.split(), f"out={folder}")
            write_tables(out)
    for task, (_, steps) in TASKS.items():
        arms = ",".join(f"'{arm}'" for arm in ["fresh", *(SAMPLERS[signal] for signal in best())])
        where = f"run={out}/{task}/seed* at=[{steps // 3}] out={out}/forks/{task} {FORKS}"
        call("fork.command", f"arms=[{arms}]", *where.split())
        write_tables(out)


def write_tables(out: Path) -> None:
    """Summarizes the finished oracles and forks in this folder."""
    from vmfer_recipes.fork.oracle import _predictions

    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in NAMES}
    for task in TASKS:
        for file in sorted((out / "oracle" / task).glob("seed*/oracle.md")):
            states = pd.read_csv(file.with_name("states.csv"))
            states["known"] = states["check"] > 0.9
            known = states[states["known"]]
            states["right"] = (known["cosine"] > 0).astype(float)
            means = states.groupby(["seed", "at"])[["known", "right"]].mean().reset_index()
            signals = _predictions(known, [*known.columns[5:-1]])
            updates = pd.read_csv(file.with_name("updates.csv"))
            for name, table in zip(NAMES, (means, signals, updates), strict=False):
                tables[name].append(table.assign(task=task))
        forks = out / "forks" / task / "forks.csv"
        if forks.exists():
            tables["forks"].append(pd.read_csv(forks).drop(columns="run").assign(task=task))
    for name, found in tables.items():
        if found:
            pd.concat(found).to_csv(HERE / f"{name}.csv", index=False, float_format="%.4g")


def best() -> list[str]:
    """The two signals with a sampler that have the highest AUROC."""
    signals = pd.read_csv(HERE / "signals.csv")
    means = signals.groupby(["signal", "task"])["auroc"].mean().groupby("signal").mean()
    return [*means[[*SAMPLERS]].nlargest(2).index]


def show(title: str, table: pd.DataFrame, by: str, column: str) -> None:
    """Prints means over seeds with their intervals: a row for each ``by``, a column for a task."""
    seeds = table.groupby([by, "task", "seed"], sort=False)[column].mean().dropna()
    tasks = [task for task in TASKS if task in seeds.index.get_level_values("task")]
    print(f"\n## {title}\n\n| {by} | {' | '.join(tasks)} |\n|---|{'---:|' * len(tasks)}")
    for name, rows in seeds.groupby(by, sort=False):
        cells = [name]
        for task in tasks:
            values = rows[rows.index.get_level_values("task") == task]
            mean, half = values.mean(), stats.t.ppf(0.975, len(values) - 1) * values.sem()
            cells.append(f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Runs the ladder, or prints every number of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="the directory of runs")
    if (out := parser.parse_args().run) is not None:
        run(out)
    files = [HERE / f"{name}.csv" for name in NAMES]
    tables = {file.stem: pd.read_csv(file) for file in files if file.exists()}
    checkpoints = tables["checkpoints"].melt(["task", "seed", "at"], var_name="states")
    show("Known gradients, and where the critics are right", checkpoints, "states", "value")
    show("Rung 1: AUROC", tables["signals"], "signal", "auroc")
    show("Rung 1: rank correlation", tables["signals"], "signal", "correlation")
    updates = tables["updates"].query("arm != 'uniform'")
    show("Rung 2: return minus that of uniform", updates, "arm", "difference")
    if "forks" not in tables:
        return
    forks = tables["forks"].set_index(["task", "seed", "arm"])
    forks["gain"] = forks["return_after"] - forks["return_before"]
    forks["difference"] = forks["gain"] - forks["gain"].xs("fresh", level="arm")
    show("Rung 3: return after minus before 2,000 steps", forks, "arm", "gain")
    show("Rung 3: return minus that of fresh", forks.drop("fresh", level=2), "arm", "difference")


if __name__ == "__main__":
    main()
