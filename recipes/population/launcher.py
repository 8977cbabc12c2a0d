"""The launcher ``hydra/launcher=population``: the runs of a sweep, trained together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from vmfer_recipes.config._hydra import sweep_composer
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.validation import to_config
from vmfer_recipes.run.interruption import Interruption, StoppedError, leaving_ctrl_c_to_the_runs


@dataclass
class PopulationConf:
    """The keys of :class:`PopulationLauncher`."""

    _target_: str = "hydra_plugins.vmfer_recipes.PopulationLauncher"
    size: int = 32
    n_jobs: int = 1
    batched: bool = False


ConfigStore.instance().store("population", PopulationConf, group="hydra/launcher")


class PopulationLauncher(Launcher):
    """Trains the runs of a sweep together.

    Args:
        size: the largest number of runs that one process trains at a time.
        n_jobs: the number of processes.
        batched: whether MuJoCo tasks of Gymnasium take the steps of all members in one call, where
            this is equal to 1e-10.
    """

    def __init__(self, size: int = 32, n_jobs: int = 1, batched: bool = False) -> None:
        if min(size, n_jobs) < 1:
            raise UserError(f"hydra.launcher has size={size} and n_jobs={n_jobs}: use at least 1.")
        self._size, self._jobs, self._is_batched = size, n_jobs, batched

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``launch``."""
        self._context, self._config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Checks and groups the runs, trains them, and returns their results."""
        from vmfer_recipes.config.launch import quiet_torchrl
        from vmfer_recipes.population.served import check_served, grouped

        setup_globals()
        quiet_torchrl()
        configs: list[Any] = []
        compose = sweep_composer(self._context.config_loader, self._config)
        for overrides in job_overrides:
            configs.append(to_config(compose(overrides)))
            check_served(configs[-1])
        groups = grouped(configs, self._size)
        errors: list[Exception | None] = [None] * len(configs)
        for group, found in zip(groups, self._train(configs, groups), strict=True):
            for position, error in zip(group, found, strict=True):
                errors[position] = error
        return [_result(cfg.run_dir, error) for cfg, error in zip(configs, errors, strict=True)]

    def _train(self, configs: list[Any], groups: list[list[int]]) -> list[list[Exception | None]]:
        from vmfer_recipes.population.training import train_together

        members = [[configs[position] for position in group] for group in groups]
        if self._jobs == 1 or len(groups) == 1:
            return [train_together(group, self._is_batched) for group in members]
        context = multiprocessing.get_context("spawn")
        with (
            leaving_ctrl_c_to_the_runs(),
            ProcessPoolExecutor(min(self._jobs, len(groups)), mp_context=context) as pool,
        ):
            return list(pool.map(_worker, members, repeat(self._is_batched)))


def _worker(configs: list[Any], is_batched: bool) -> list[Exception | None]:
    from vmfer_recipes.config.launch import quiet_torchrl
    from vmfer_recipes.population.training import train_together

    if Interruption.came:
        return [StoppedError()] * len(configs)
    quiet_torchrl()
    try:
        # An exception of any kind may not be picklable; its message is.
        errors = train_together(configs, is_batched)
    except SystemExit:
        return [StoppedError()] * len(configs)
    return [None if error is None else UserError(first_line(error)) for error in errors]


def _result(run_dir: str, error: Exception | None) -> JobReturn:
    result = JobReturn()
    result.status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
    if error is not None and not isinstance(error, StoppedError):
        error = UserError(
            f"{run_dir} failed ({first_line(error)}). The other runs have ended; run the same "
            "command to complete the sweep."
        )
    result.return_value = error
    return result
