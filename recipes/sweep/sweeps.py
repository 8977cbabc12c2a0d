"""Sweeps: all runs are composed, checked and given their directories before the first starts."""

from __future__ import annotations

import io
import itertools
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from vmfer_recipes.config._hydra import current_job
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.sweep.directories import check_directories, with_swept_keys
from vmfer_recipes.sweep.jobs import Job, check_parts, nothing_started, position_override
from vmfer_recipes.sweep.records import PlannedRun, write_record

__all__ = ["GridConf", "GridSweeper", "RecipeSweeper"]


class RecipeSweeper(Sweeper):
    """Base class of sweepers: composes and checks runs, and starts them with Hydra's launcher."""

    config: DictConfig
    hydra_context: HydraContext
    launcher: Launcher

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``sweep``."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def record(self, configs: Sequence[Any]) -> None:
        """Records the training runs of this sweep, for ``status.py``."""
        runs = [
            PlannedRun(Path(cfg.run_dir), cfg.algorithm, cfg.total_frames)
            for cfg in configs
            if isinstance(cfg, TrainingConfig)
        ]
        if runs:
            command = shlex.join(["python", *sys.argv])
            write_record(runs, Path(self.config.hydra.sweep.dir), command)

    def parse(self, arguments: Sequence[str]) -> list[Override]:
        """The overrides of the experiment and of the command line, the last one of each key."""
        params = self.config.hydra.sweeper.params or {}
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        given = [*(f"{key}={value}" for key, value in params.items()), *arguments]
        overrides = parser.parse_overrides(given)
        return list({override.get_key_element(): override for override in overrides}.values())

    def compose(
        self,
        overrides: Sequence[str],
        swept: list[str],
        number: int,
        *,
        extend_run_dir: bool = False,
    ) -> Job:
        """Composes and validates one run.

        Args:
            overrides: one value for each key.
            swept: the keys whose values differ between runs.
            number: its number in the sweep, from 0.
            extend_run_dir: whether swept keys become part of the run directory if it does not
                depend on them.
        """
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        job = Job(list(overrides), swept, composed)
        with current_job(composed, number), nothing_started(job):
            job.validate()
            if extend_run_dir:
                composed.run_dir = with_swept_keys(job)
                job.config.run_dir = composed.run_dir
        return job

    def launch(self, jobs: Sequence[Job], first: int, total: int) -> list[JobReturn]:
        """Starts runs and waits for them.

        Args:
            jobs: the runs.
            first: the number of the first one in the sweep, from 0.
            total: the number of runs of the sweep.
        """
        arguments = [[*job.arguments, position_override(total)] for job in jobs]
        return list(self.launcher.launch(arguments, initial_job_idx=first))


@dataclass
class GridConf:
    """The configuration of :class:`GridSweeper`, with the keys of Hydra's basic sweeper."""

    _target_: str = "hydra_plugins.vmfer_recipes.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


class GridSweeper(RecipeSweeper):
    """Runs all combinations of the given values.

    Args:
        max_batch_size: the largest number of runs given to the launcher at a time.
        params: values from a configuration file, by key.
    """

    def __init__(self, max_batch_size: int | None = None, params: Any = None) -> None:
        self._batch = max_batch_size

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:
        """Checks all runs, records the sweep and executes it."""
        setup_globals()
        if self._batch is not None and self._batch < 1:
            raise UserError(f"hydra.sweeper.max_batch_size must be at least 1, got {self._batch}.")
        jobs = self._jobs(self.parse(arguments))
        check_directories(jobs)
        check_parts(jobs)
        self.record([job.config for job in jobs])
        size, returns = self._batch or len(jobs), []
        errors: list[Exception] = []
        for first in range(0, len(jobs), size):
            results = self.launch(jobs[first : first + size], first, len(jobs))
            returns.append(results)
            for result in results:
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

    def _jobs(self, overrides: list[Override]) -> list[Job]:
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(
                    f"{override.input_line} is a range to search, not a list of values: use "
                    "recipes/tune.py, or list the values."
                )
        swept = [each.get_key_element() for each in overrides if each.is_sweep_override()]
        grid = [[*values] for values in itertools.product(*map(_single_values, overrides))]
        if not grid:
            raise UserError(f"This sweep has no runs: {' '.join(swept)} has no values.")
        is_explicit = any(each.get_key_element() == "run_dir" for each in overrides)
        jobs = [
            self.compose(given, swept, number, extend_run_dir=not is_explicit)
            for number, given in enumerate(grid)
        ]
        for job in jobs:
            _check_experiment(job)
        return jobs


def _check_experiment(job: Job) -> None:
    """Raises ``UserError`` if one of several experiments has lists of values that are not used."""
    lists = job.hydra.hydra.sweeper.params or {}
    ignored = [key for key in lists if key not in job.values]
    if ignored and "+experiment" in job.swept:
        raise UserError(
            f"+experiment={job.values['+experiment']} is a sweep over {', '.join(ignored)}: start "
            "one experiment at a time."
        )


def _single_values(override: Override) -> list[str]:
    """An override of a sweep as one override for each value."""
    if override.is_sweep_override():
        values = [str(value) for value in override.sweep_string_iterator()]
    else:
        values = [override.get_value_element_as_str()]
    return [f"{override.get_key_element()}={value}" for value in values]
