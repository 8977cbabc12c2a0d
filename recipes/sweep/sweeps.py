"""Sweeps: all runs are composed, checked and given their directories before the first starts."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stderr
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from vmfer_recipes.config._hydra import SweepComposer, combinations
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.sweep.jobs import Job, check_directories, check_parts, position_override
from vmfer_recipes.sweep.records import PlannedRun, write_record


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
        given = [*map("=".join, self._params.items()), *arguments]
        jobs = _jobs(given, self._loader, self.config)
        check_directories(jobs)
        check_parts(jobs)
        configs = [job.config for job in jobs if isinstance(job.config, TrainingConfig)]
        if configs:
            runs = [PlannedRun(Path(c.run_dir), c.algorithm, c.total_frames) for c in configs]
            command = shlex.join(["python", *sys.argv])
            write_record(runs, Path(self.config.hydra.sweep.dir), command)
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
    compose = SweepComposer(loader, master)
    jobs = []
    for number, overrides in enumerate(combinations(last.values())):
        job, composed = Job(overrides, swept), compose(overrides)
        ignored = [key for key in composed.hydra.sweeper.params or {} if key not in last]
        if ignored and "+experiment" in swept:
            raise UserError(
                f"+experiment={job.values['+experiment']} is a sweep over "
                f"{', '.join(ignored)}: start one experiment at a time."
            )
        job.validate(composed, number)
        jobs.append(job)
    if not jobs:
        raise UserError(f"This sweep has no runs: {' '.join(swept)} has no values.")
    return jobs
