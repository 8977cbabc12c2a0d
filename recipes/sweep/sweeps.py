"""Sweeps: all runs are composed, checked and given their directories before the first starts."""

from __future__ import annotations

import io
import itertools
import shlex
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.config._hydra import SweepComposer, current_job
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import groups
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import to_config
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.sweep.directories import check_directories, with_swept_keys
from vmfer_recipes.sweep.jobs import Job, check_parts, position_override
from vmfer_recipes.sweep.records import PlannedRun, write_record

__all__ = ["GridConf", "GridSweeper"]


@dataclass
class GridConf:
    """The configuration of :class:`GridSweeper`, with the keys of Hydra's basic sweeper."""

    _target_: str = "hydra_plugins.vmfer_recipes.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


class GridSweeper(Sweeper):
    """Runs all combinations of the given values.

    Args:
        max_batch_size: the largest number of runs given to the launcher at a time.
        params: values from a configuration file, by key.
    """

    config: DictConfig

    def __init__(self, max_batch_size: int | None = None, params: Any = None) -> None:
        self._batch = max_batch_size

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``sweep``."""
        self.config = config
        self._loader = hydra_context.config_loader
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:
        """Checks all runs, records the sweep and executes it."""
        setup_globals()
        if self._batch is not None and self._batch < 1:
            raise UserError(f"hydra.sweeper.max_batch_size must be at least 1, got {self._batch}.")
        jobs = self._jobs(self._parse(arguments))
        check_directories(jobs)
        check_parts(jobs)
        self._record(jobs)
        size, returns = self._batch or len(jobs), []
        errors: list[Exception] = []
        for first in range(0, len(jobs), size):
            overrides = [
                [*job.arguments, position_override(len(jobs))] for job in jobs[first : first + size]
            ]
            returns.append(list(self._launcher.launch(overrides, initial_job_idx=first)))
            for result in returns[-1]:
                try:
                    with redirect_stderr(io.StringIO()):  # the run has reported its error
                        _ = result.return_value  # raises it
                except StoppedError:
                    raise
                except Exception as error:  # the other runs continue
                    errors.append(error)
        if errors:
            raise errors[0]
        return returns

    def _parse(self, arguments: list[str]) -> list[Override]:
        """The overrides of the experiment and of the command line, the last one of each key."""
        parser = OverridesParser.create(config_loader=self._loader)
        params = self.config.hydra.sweeper.params or {}
        given = [*(f"{key}={value}" for key, value in params.items()), *arguments]
        overrides = parser.parse_overrides(given)
        return list({override.get_key_element(): override for override in overrides}.values())

    def _jobs(self, overrides: list[Override]) -> list[Job]:
        """Composes and validates all runs."""
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(
                    f"{override.input_line} is a range to search, not a list of values: use "
                    "recipes/tune.py, or list the values."
                )
        swept = [each.get_key_element() for each in overrides if each.is_sweep_override()]
        is_explicit = any(each.get_key_element() == "run_dir" for each in overrides)
        compose, jobs = SweepComposer(self._loader, self.config), []
        for number, values in enumerate(itertools.product(*map(_single_values, overrides))):
            job = _validated(compose(values), list(values), swept, number, not is_explicit)
            ignored = [key for key in job.lists if key not in job.values]
            if ignored and "+experiment" in swept:
                raise UserError(
                    f"+experiment={job.values['+experiment']} is a sweep over "
                    f"{', '.join(ignored)}: start one experiment at a time."
                )
            jobs.append(job)
        if not jobs:
            raise UserError(f"This sweep has no runs: {' '.join(swept)} has no values.")
        return jobs

    def _record(self, jobs: list[Job]) -> None:
        """Records the training runs of this sweep, for ``status.py``."""
        runs = [
            PlannedRun(Path(job.config.run_dir), job.config.algorithm, job.config.total_frames)
            for job in jobs
            if isinstance(job.config, TrainingConfig)
        ]
        if runs:
            command = shlex.join(["python", *sys.argv])
            write_record(runs, Path(self.config.hydra.sweep.dir), command)


def _validated(
    composed: DictConfig, overrides: list[str], swept: list[str], number: int, extends: bool
) -> Job:
    """A run from its composed configuration, and its directory extended by swept keys if wanted."""
    job = Job(overrides, dict.fromkeys(swept), lists=list(composed.hydra.sweeper.params or {}))
    with current_job(composed, number) as task, job.not_started():
        written: Any = OmegaConf.to_container(task, resolve=False)
        job.template, job.config = str(written["run_dir"]), to_config(task)
        for key in swept:
            name = key.lstrip("+")
            if name == "experiment" or name in groups(type(job.config)):
                job.swept[key] = job.values[key]
            else:
                value = OmegaConf.select(task, name)
                is_part = OmegaConf.is_config(value)
                job.swept[key] = OmegaConf.to_container(value) if is_part else value
        if extends:
            task.run_dir = with_swept_keys(job)
            job.config.run_dir = task.run_dir
    return job


def _single_values(override: Override) -> list[str]:
    """An override of a sweep as one override for each value."""
    if override.is_sweep_override():
        values = [str(value) for value in override.sweep_string_iterator()]
    else:
        values = [override.get_value_element_as_str()]
    return [f"{override.get_key_element()}={value}" for value in values]
