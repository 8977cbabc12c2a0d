"""Sweeps: all runs are composed, checked and given their directories before the first starts."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.config._hydra import combinations, sweep_composer
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import groups
from vmfer_recipes.config.names import flat, folder_name, written
from vmfer_recipes.config.plugins import import_class, is_custom
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import to_config
from vmfer_recipes.run.directory import RunDirectory
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.sweep.records import PlannedRun, write_record

_LONGEST_NAME = 80
# The launcher passes this variable to every run, in this process or on another machine.
_TOTAL = "VMFER_RUNS_OF_SWEEP"


class GridSweeper(Sweeper):
    """Runs all combinations of the given values, at most ``max_batch_size`` at a time."""

    config: DictConfig

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        self._batch, self._params = max_batch_size, params or {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``sweep``."""
        self.config = config
        self._loader = hydra_context.config_loader
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Checks all runs, records the sweep and executes it."""
        setup_globals()
        size = self._batch
        if size is not None and size < 1:
            raise UserError(f"hydra.sweeper.max_batch_size must be at least 1, got {size}.")
        given = [*map("=".join, self._params.items()), *arguments]
        jobs = _jobs(given, self._loader, self.config)
        check_directories(jobs)
        check_parts(jobs)
        configs = [job.config for job in jobs if isinstance(job.config, TrainingConfig)]
        if configs:
            runs = [PlannedRun(Path(c.run_dir), c.algorithm, c.total_frames) for c in configs]
            command = shlex.join(["python", *sys.argv])
            write_record(runs, Path(self.config.hydra.sweep.dir), command)
        total = f"++hydra.job.env_set.{_TOTAL}='{len(jobs)}'"
        launched = [[*job.arguments, total] for job in jobs]
        errors = []
        for first in range(0, len(jobs), size or len(jobs)):
            batch = launched[first : first + (size or len(jobs))]
            for result in self._launcher.launch(batch, initial_job_idx=first):
                try:
                    with redirect_stderr(io.StringIO()):  # the run has reported its error
                        _ = result.return_value  # raises it
                except StoppedError:
                    raise
                except Exception as error:  # the other runs continue
                    errors.append(error)
        if errors:
            raise errors[0]


def _jobs(arguments: list[str], loader: ConfigLoader, master: DictConfig) -> list[Job]:
    """Composes and validates the runs of a sweep."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(arguments)
    last = {each.get_key_element(): each for each in parsed}
    swept = [key for key, override in last.items() if override.is_sweep_override()]
    for override in last.values():
        if override.is_interval_sweep():
            raise UserError(
                f"{override.input_line} is a range to search, not a list of values: use "
                "recipes/tune.py, or list the values."
            )
    if "+experiment" in swept:
        raise UserError(f"{last['+experiment'].input_line}: start one experiment at a time.")
    compose = sweep_composer(loader, master)
    jobs = [Job(overrides, swept, compose(overrides)) for overrides in combinations(last.values())]
    if not jobs:
        raise UserError(f"This sweep has no runs: {' '.join(swept)} has no values.")
    return jobs


class Job:
    """A run of a sweep. Its directory depends on all ``swept`` keys, which differ between runs.

    Its ``name`` is what distinguishes it: ``batch_size=64 seed=1``. A pattern of a directory refers
    to the swept keys by its ``references``.
    """

    def __init__(self, overrides: list[str], swept: list[str], composed: DictConfig) -> None:
        values = dict(each.split("=", 1) for each in overrides)
        self._overrides = overrides
        self.name = " ".join(f"{key}={values[key]}" for key in swept or values)
        unresolved: Any = OmegaConf.to_container(composed, resolve=False)
        with self.not_started():
            self.config = to_config(composed)
        choices, parts = groups(type(self.config)), {}
        for key in swept:
            name = key.lstrip("+")
            value = values[key] if name in choices else OmegaConf.select(composed, name)
            parts[name] = _as_name(value)[:_LONGEST_NAME]
        known = flat(self.config.as_dict())
        references = (each for name in parts for each in (name, f"{name}.name"))
        self.references = " ".join(f"${{{each}}}" for each in references if each in known)
        if "run_dir" not in values:
            composed.run_dir = self._extended(unresolved["run_dir"], parts)
            self.config.run_dir = composed.run_dir

    def _extended(self, template: str, parts: dict[str, str]) -> str:
        """The pattern of a directory, extended by the swept keys that it does not depend on.

        The keys are inserted in alphabetical order, before the last part if that holds the seed.
        The directory thus depends neither on their order on the command line nor on other values of
        the sweep.
        """
        used = re.findall(r"\$\{([^}:]+)\}", template)
        added = [
            f"{name}_{parts[name]}"
            for name in sorted(parts)
            if not any(f"{each}.".startswith(f"{name}.") for each in used)
        ]
        *first, last = template.split("/")
        return "/".join([*first, *added, last] if "${seed}" in last else [template, *added])

    @property
    def arguments(self) -> list[str]:
        """The overrides that start it, with its directory."""
        run_dir = str(self.config.run_dir).replace("\\", "\\\\").replace("'", "\\'")
        return [*self._overrides, f"run_dir='{run_dir}'"]

    @contextmanager
    def not_started(self) -> Iterator[None]:
        """A context whose errors name the run."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{error} No run was started; this one is {self.name}.") from error


def check_directories(jobs: list[Job]) -> None:
    """Raises ``UserError`` if runs share a directory."""
    found: dict[Path, Job] = {}
    for job in jobs:
        other = found.setdefault(Path(job.config.run_dir).absolute(), job)
        if other is not job:
            raise UserError(
                f"Two runs of this sweep have run_dir={job.config.run_dir}: {other.name} and "
                f"{job.name}. Give each value once, and put {job.references} into run_dir=, or "
                "leave run_dir out."
            )


def check_parts(jobs: list[Job]) -> None:
    """Raises ``UserError`` for a run whose directory, environment or custom class is unusable.

    Each environment is tried once, because a misspelled name must not end a run hours later.
    """
    from vmfer_recipes.environments.make import make_environment

    seen: set[str] = set()
    for job in jobs:
        cfg = job.config
        if not isinstance(cfg, TrainingConfig):
            continue
        with job.not_started():
            RunDirectory(cfg).check()
            goals = cfg.replay.has_goals
            if (task := repr((cfg.env, goals))) not in seen:
                make_environment(cfg.env, cfg.seed, goals=goals).close()
            seen.add(task)
            for group in ("sampler", "replay", "logger"):
                if is_custom(part := getattr(cfg, group)):
                    import_class(part._target_, object, group)


def _as_name(value: Any) -> str:
    """Writes a value as part of a directory name that needs no quotes in a shell."""
    if isinstance(value, Mapping):
        value = [f"{key}-{_as_name(item)}" for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "-".join(map(_as_name, value)) or "none"
    return folder_name(written(value) if isinstance(value, bool) or value is None else value)


def sweep_position() -> tuple[int, int] | None:
    """The number of the current run in its sweep, from 1, and the number of runs.

    ``None`` outside a sweep.
    """
    total = os.environ.get(_TOTAL)
    return None if total is None else (int(HydraConfig.get().job.num) + 1, int(total))
