"""Reads run directories. Nothing in them is executed; unreadable ones are reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vmfer_recipes.config.errors import first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.names import flat
from vmfer_recipes.config.saved import read_training_config
from vmfer_recipes.report.methods import Method, Task, frozen
from vmfer_recipes.run.directory import INCIDENTAL
from vmfer_recipes.run.tables import read_columns

# The last tenth of the run, because a single evaluation of ten episodes is noisy.
FINAL_SHARE = 0.1
METRICS = ("return", "success_rate")
_PLAIN = EnvConfig("")


class LeftOut(NamedTuple):
    """A run that is not part of a report, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Run:
    """One training run."""

    path: str  # its directory, relative to where reading began
    task: Task
    method: Method
    seed: int
    steps: np.ndarray  # when it was evaluated, increasing
    values: dict[str, np.ndarray]  # by return and success_rate, the mean of each evaluation
    finished: bool  # whether it was evaluated at its last step
    speed: float  # median of its training steps per second, or NaN


def final(steps: np.ndarray, values: np.ndarray) -> float:
    """The mean of the evaluations in the last tenth of the run."""
    return float(values[steps >= (1 - FINAL_SHARE) * steps[-1]].mean())


def area(steps: np.ndarray, values: np.ndarray) -> float:
    """The area under the curve per step by the trapezoidal rule: the mean over the run."""
    span = steps[-1] - steps[0]
    areas = np.diff(steps) * (values[1:] + values[:-1]) / 2
    return float(areas.sum() / span if span else values[0])


def objective(run_dir: Path, metric: str, kind: str, direction: str) -> float:
    """A number that says how good a run was: the ``final``, ``best`` or mean (``area``) value."""
    table = read_columns(run_dir / "eval.csv")
    steps, values = table["step"], table[metric]
    if kind == "best":
        return float(values.max() if direction == "maximize" else values.min())
    return (area if kind == "area" else final)(steps, values)


def read_runs(folder: Path, until: int | None = None) -> tuple[list[Run], list[LeftOut]]:
    """All runs at and under a folder, in the order of their paths, and what was left out.

    A seed that is found twice with the same settings is taken once: the run that got further.
    ``until`` reads the runs as if they had ended at this step, which they must have reached. Longer
    training does not change earlier steps, so runs of any length are comparable.
    """
    found: dict[tuple[Task, Method, int], Run] = {}
    left_out = []
    for file in sorted(folder.rglob("config.yaml")):
        path = file.parent.relative_to(folder).as_posix()
        try:
            run = _read(file.parent, path)
            run = run if until is None else _cut(run, until)
        except Exception as error:
            left_out.append(LeftOut(path, first_line(error)))
            continue
        key = (run.task, run.method, run.seed)
        if key in found:
            run, drop = sorted((found[key], run), key=lambda r: r.steps[-1], reverse=True)
            left_out.append(LeftOut(drop.path, f"same settings and seed as {run.path}"))
        found[key] = run
    return list(found.values()), left_out


def _read(run_dir: Path, path: str) -> Run:
    config = flat(read_training_config(run_dir))
    steps, values = _read_evaluations(run_dir / "eval.csv")
    variant, settings = {}, {}
    is_offline = "share" not in config  # otherwise the dataset belongs to the method
    for name, value in config.items():
        group, _, rest = name.partition(".")
        if (name == "dataset" and is_offline) or (
            group == "env" and rest != "name" and value != getattr(_PLAIN, rest, None)
        ):
            variant[name] = value
        elif group not in (*INCIDENTAL, "env"):
            settings[name] = value
    names = (config["algorithm"], config["replay.name"], config["sampler.name"])
    try:
        speed = float(np.nanmedian(read_columns(run_dir / "train.csv")["steps_per_second"][-100:]))
    except (OSError, KeyError, ValueError, IndexError):
        speed = math.nan  # the report can do without it
    return Run(
        path=path,
        task=Task(config["env.name"], config["total_frames"], frozen(variant)),
        method=Method(*names, frozen(settings)),
        seed=config["seed"],
        steps=steps,
        values=values,
        # Not the file `finished`: kept runs may consist of configuration and table only.
        finished=steps[-1] == config["total_frames"],
        speed=speed,
    )


def _read_evaluations(file: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    if not file.exists():
        raise ValueError("not evaluated yet: no eval.csv")
    table = read_columns(file)
    steps, values = table["step"], {"return": table["return_mean"]}
    if not len(steps):
        raise ValueError("not evaluated yet: eval.csv has no rows")
    # Every run is evaluated before it learns.
    if steps[0] != 0 or not (np.diff(steps) > 0).all():
        raise ValueError("the steps in eval.csv do not increase from 0")
    if np.isfinite(table.get("success_rate", np.nan)).any():
        values["success_rate"] = table["success_rate"]
    for name, column in values.items():
        if len(bad := steps[~np.isfinite(column)]):
            raise ValueError(f"eval.csv has no {name.replace('_', ' ')} at step {bad[0]:.0f}")
    return steps, values


def _cut(run: Run, until: int) -> Run:
    if run.steps[-1] < until:
        end = "its training ends at" if run.finished else "evaluated only to"
        raise ValueError(f"{end} step {run.steps[-1]:,.0f}, before until={until}")
    # The end may lie between two evaluations.
    steps = np.append(run.steps[run.steps < until], until)
    values = {name: np.interp(steps, run.steps, column) for name, column in run.values.items()}
    task = replace(run.task, total_frames=until)
    return replace(run, task=task, steps=steps, values=values, finished=True)
