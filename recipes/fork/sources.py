"""The checkpoints from which forks start. Nothing is loaded yet."""

from __future__ import annotations

import functools
import glob
import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.names import differing, flat
from vmfer_recipes.config.saved import load_config
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.directory import INCIDENTAL
from vmfer_recipes.run.files import checkpoint_files, step_of


@dataclass(frozen=True)
class Source:
    """A checkpoint of a run, with the directory and the configuration of the run."""

    run_dir: Path
    cfg: TrainingConfig
    step: int
    file: Path

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.cfg.seed

    @functools.cached_property
    def fingerprint(self) -> str:
        """A checksum of the checkpoint."""
        with self.file.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return hashlib.sha256(content).hexdigest()


def find_sources(runs: list[str], at: list[int]) -> list[Source]:
    """The checkpoints of the steps ``at``, or all kept ones, in the order of seeds and steps.

    The runs may differ only in their seed. A pattern such as ``seed*`` stands for all directories
    that match.
    """
    found: dict[int, tuple[Path, TrainingConfig]] = {}
    for run_dir in _directories(runs):
        cfg = load_config(run_dir)
        if not cfg.collector.is_single:
            raise UserError(
                f"{run_dir} was trained with collector={cfg.collector.name}, whose episodes are "
                "in other processes: fork a run with collector=single."
            )
        if cfg.lr_schedule != "constant":
            raise UserError(
                f"{run_dir} was trained with lr_schedule={cfg.lr_schedule}, which depends on the "
                "end of the run: fork a run with lr_schedule=constant."
            )
        if cfg.seed in found:
            raise UserError(
                f"{found[cfg.seed][0]} and {run_dir} both have seed={cfg.seed}: give one run of "
                "each seed."
            )
        found[cfg.seed] = run_dir, cfg
    (first_dir, first), *others = runs_by_seed = [found[seed] for seed in sorted(found)]
    for run_dir, cfg in others:
        one, other = _setting(first), _setting(cfg)
        values = [f"{key}={one.get(key)} and {other.get(key)}" for key in differing(one, other)]
        if values:
            raise UserError(
                f"{first_dir} and {run_dir} differ in more than the seed ({'; '.join(values)}): "
                "fork them one after the other."
            )
    return [
        Source(run_dir, cfg, step, file)
        for run_dir, cfg in runs_by_seed
        for step, file in _checkpoints(run_dir, at)
    ]


def _setting(cfg: TrainingConfig) -> dict[str, Any]:
    """The configuration without the seed and without keys that do not affect learning."""
    config = flat(cfg.as_dict())
    return {key: value for key, value in config.items() if key.split(".")[0] not in INCIDENTAL}


def _directories(runs: list[str]) -> list[Path]:
    if not runs:
        raise UserError("run=[] names no run: give run directories, such as run=[runs/a,runs/b].")
    directories = []
    for run in runs:
        matching = [run] if Path(run).exists() else sorted(glob.glob(run))
        if not matching:
            raise UserError(f"run={run} matches no directory: check the path or the pattern.")
        directories += [Path(match) for match in matching]
    return directories


def _checkpoints(run_dir: Path, at: list[int]) -> list[tuple[int, Path]]:
    folder = run_dir / "checkpoint"
    kept = {step_of(file): file for file in checkpoint_files(folder / "kept")}
    newest = dict(sorted((step_of(file), file) for file in checkpoint_files(folder))[-1:])
    available = newest | kept
    missing = [step for step in at if step not in available]
    if missing or not (at or kept):
        wanted = f"no checkpoint of step {missing[0]}" if missing else "no kept checkpoints"
        steps = ", ".join(map(str, sorted(available)))
        found = f" (available: {steps})" if steps else ""
        cure = f"use at=[{steps}], or " if steps else ""
        raise UserError(
            f"{run_dir} has {wanted}{found}: {cure}train with keep_checkpoints_at=[...] to keep "
            "more."
        )
    return [(step, available[step]) for step in sorted(set(at) or kept)]
