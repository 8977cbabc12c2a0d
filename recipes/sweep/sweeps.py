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
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.config._hydra import SweepComposer, current_job
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import groups, to_config
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.sweep.jobs import (
    Job,
    check_directories,
    check_parts,
    position_override,
    with_swept_keys,
)
from vmfer_recipes.sweep.records import PlannedRun, write_record


@dataclass
class GridConf:
    """The configuration of :class:`GridSweeper`, with the keys of Hydra's basic sweeper."""

    _target_: str = "hydra_plugins.vmfer_recipes.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


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

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:
        """Checks all runs, records the sweep and executes it."""
        setup_globals()
        size = self._batch
        if size is not None and size < 1:
            raise UserError(f"hydra.sweeper.max_batch_size must be at least 1, got {size}.")
        jobs = self._jobs(arguments)
        check_directories(jobs)
        check_parts(jobs)
        self._record(jobs)
        launched = [[*job.arguments, position_override(len(jobs))] for job in jobs]
        returns, errors = [], []
        for first in range(0, len(jobs), size or len(jobs)):
            batch = launched[first : first + (size or len(jobs))]
            returns.append(list(self._launcher.launch(batch, initial_job_idx=first)))
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

    def _jobs(self, arguments: list[str]) -> list[Job]:
        """Composes and validates all runs."""
        given = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        overrides = OverridesParser.create(config_loader=self._loader).parse_overrides(given)
        last = {override.get_key_element(): override for override in overrides}
        for override in last.values():
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(
                    f"{override.input_line} is a range to search, not a list of values: use "
                    "recipes/tune.py, or list the values."
                )
        swept = [key for key, override in last.items() if override.is_sweep_override()]
        choices = [
            [f"{key}={value}" for value in each.sweep_string_iterator()]
            if key in swept
            else [f"{key}={each.get_value_element_as_str()}"]
            for key, each in last.items()
        ]
        compose, extends = SweepComposer(self._loader, self.config), "run_dir" not in last
        jobs = [
            _validated(compose(values), list(values), swept, number, extends)
            for number, values in enumerate(itertools.product(*choices))
        ]
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
    job = Job(overrides, dict.fromkeys(swept))
    ignored = [key for key in composed.hydra.sweeper.params or {} if key not in job.values]
    if ignored and "+experiment" in swept:
        raise UserError(
            f"+experiment={job.values['+experiment']} is a sweep over {', '.join(ignored)}: start "
            "one experiment at a time."
        )
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
