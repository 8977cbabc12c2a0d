"""Reads run directories. Nothing in them is executed; unreadable ones are reported."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.keys import MISSING, Key, describe
from vmfer_recipes.config.names import flat
from vmfer_recipes.config.training import INCIDENTAL
from vmfer_recipes.run.tables import read_columns

__all__ = [
    "LeftOut",
    "NoTrainingRunError",
    "Run",
    "described",
    "frozen",
    "read_config",
    "read_runs",
]

# Keys of the task, which is kept apart from the method.
_TASK = ("env", "dataset")
_PLAIN = EnvConfig("")  # runs of earlier versions lack keys that have their defaults
_REQUIRED = ("algorithm", "env.name", "replay.name", "sampler.name", "seed", "total_frames")


@dataclass(frozen=True)
class LeftOut:
    """A run that is not part of a report, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Run:
    """One training run.

    Attributes:
        path: its directory, relative to where reading began.
        variant: the keys of ``env.`` besides the name that differ from their defaults, and the
            dataset of an offline run.
        settings: the hyperparameters by dotted key, without seed and housekeeping.
        steps: when it was evaluated, increasing.
        returns: mean return of each evaluation.
        success: success rate of each evaluation, if the task has one.
        finished: whether it was evaluated at its last step.
        speed: median of its training steps per second, or NaN.
    """

    path: str
    algorithm: str
    environment: str
    replay: str
    sampler: str
    seed: int
    total_frames: int
    variant: dict[str, Any]
    settings: dict[str, Any]
    steps: np.ndarray
    returns: np.ndarray
    success: np.ndarray | None
    finished: bool
    speed: float


def read_runs(folder: Path, until: int | None = None) -> tuple[list[Run], list[LeftOut]]:
    """All runs at and under a folder, in the order of their paths, and what was left out.

    A seed that is found twice with the same settings is taken once: the run that got further.

    Args:
        folder: where to look.
        until: read the runs as if they had ended at this step, which they must have reached.
            Longer training does not change earlier steps, so runs of any length are comparable.
    """
    found: dict[tuple[Any, ...], Run] = {}
    left_out = []
    for file in sorted(folder.rglob("config.yaml")):
        path = file.parent.relative_to(folder).as_posix()
        try:
            run = _read(file.parent, path)
            run = run if until is None else _cut(run, until)
        except Exception as error:
            left_out.append(LeftOut(path, first_line(error)))
            continue
        task = (run.environment, run.total_frames, frozen(run.variant))
        key = (*task, frozen(run.settings), run.seed)
        other = found.get(key)
        if other is not None:
            keep, drop = sorted((other, run), key=lambda r: r.steps[-1], reverse=True)
            left_out.append(LeftOut(drop.path, f"same settings and seed as {keep.path}"))
            run = keep
        found[key] = run
    return list(found.values()), left_out


def frozen(settings: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Settings as something that can be compared and hashed."""
    return tuple(sorted((key, repr(value)) for key, value in settings.items()))


class NoTrainingRunError(ValueError):
    """Raised for the configuration of another program, such as ``shooting.py``."""


def read_config(file: Path) -> dict[str, Any]:
    """A ``config.yaml`` as a flat dictionary of dotted keys."""
    try:
        # Not resolved: a file from elsewhere must not read this machine's environment variables.
        content = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:
        raise ValueError(f"config.yaml cannot be read ({first_line(error)})") from error
    config = flat(content) if isinstance(content, dict) else {}
    missing = [key for key in _REQUIRED if key not in config]
    if config and "algorithm" in missing and "total_frames" in missing:
        raise NoTrainingRunError("config.yaml is not that of a training run")
    if missing:
        raise ValueError(f"config.yaml has no {', '.join(missing)}")
    for key in _REQUIRED:
        kind = int if key in ("seed", "total_frames") else str
        if type(config[key]) is not kind:
            raise ValueError(f"config.yaml has {key}={config[key]!r}")
    if config["total_frames"] < 1:
        raise ValueError(f"config.yaml has total_frames={config['total_frames']}")
    return config


def _read(run_dir: Path, path: str) -> Run:
    config = read_config(run_dir / "config.yaml")
    if not (run_dir / "eval.csv").exists():
        raise ValueError("not evaluated yet: no eval.csv")
    table = read_columns(run_dir / "eval.csv")
    steps, returns = table.get("step"), table.get("return_mean")
    if steps is None or returns is None:
        raise ValueError("eval.csv has no columns step and return_mean")
    if not len(steps):
        raise ValueError("not evaluated yet: eval.csv has no rows")
    if not (np.isfinite(steps).all() and (np.diff(steps) > 0).all() and steps[0] >= 0):
        raise ValueError("the steps in eval.csv do not increase")
    if steps[0] > 0:  # every run is evaluated before it learns
        raise ValueError(f"eval.csv has lost its rows before step {steps[0]:.0f}")
    if not np.isfinite(returns).all():
        raise ValueError(f"eval.csv has no finite return at step {_first_bad(steps, returns):.0f}")
    success = table.get("success_rate")
    if success is not None and not np.isfinite(success).all():
        if np.isfinite(success).any():
            raise ValueError(
                f"eval.csv has no success rate at step {_first_bad(steps, success):.0f}"
            )
        success = None
    return Run(
        path=path,
        algorithm=config["algorithm"],
        environment=config["env.name"],
        replay=config["replay.name"],
        sampler=config["sampler.name"],
        seed=config["seed"],
        total_frames=config["total_frames"],
        variant={
            name: value
            for name, value in config.items()
            if name == "dataset"
            or (
                name.startswith("env.")
                and name != "env.name"
                and value != getattr(_PLAIN, name.removeprefix("env."), None)
            )
        },
        settings={
            name: value
            for name, value in (_later_keys(config) | config).items()
            if name.split(".")[0] not in (*INCIDENTAL, *_TASK)
        },
        steps=steps,
        returns=returns,
        success=success,
        # Not the file `finished`: kept runs may consist of configuration and table only.
        finished=steps[-1] == config["total_frames"],
        speed=_speed(run_dir / "train.csv"),
    )


def _cut(run: Run, until: int) -> Run:
    if run.steps[-1] < until:
        end = "its training ends at" if run.finished else "evaluated only to"
        raise ValueError(f"{end} step {run.steps[-1]:,.0f}, before until={until}")
    # The end may lie between two evaluations.
    steps = np.append(run.steps[run.steps < until], until)
    return replace(
        run,
        total_frames=until,
        steps=steps,
        returns=np.interp(steps, run.steps, run.returns),
        success=None if run.success is None else np.interp(steps, run.steps, run.success),
        finished=True,
    )


def _later_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The defaults of keys that the run of an earlier version lacks."""
    return {
        each.name: each.default
        for each in described(config["algorithm"])
        if each.default != MISSING
        and ("." not in each.name or _has_kind(config, each.name.split(".")[0], each.kinds))
    }


def _has_kind(config: dict[str, Any], group: str, kinds: tuple[str, ...]) -> bool:
    kind = config.get(f"{group}.kind")
    return kind is not None and (not kinds or kind in kinds)


@functools.cache
def described(algorithm: str) -> list[Key]:
    """The keys of a recipe of this package; none for other algorithms."""
    known = algorithms()
    return describe(known[algorithm]) if algorithm in known else []


def _speed(file: Path) -> float:
    try:
        return float(np.nanmedian(read_columns(file)["steps_per_second"][-100:]))
    except (OSError, KeyError, ValueError, IndexError):
        return math.nan  # the report can do without it


def _first_bad(steps: np.ndarray, values: np.ndarray) -> float:
    return float(steps[np.argmin(np.isfinite(values))])
