"""Sweeps: all runs are composed, checked and given their directories before the first starts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.keys import Config, describe, groups, to_config
from vmfer_recipes.training.options import TrainingConfig
from vmfer_recipes.training.run_directory import RunDirectory
from vmfer_recipes.training.sweep_records import PlannedRun, write_record

__all__ = [
    "GridSweeper",
    "Job",
    "RecipeSweeper",
    "check_parts",
    "nothing_started",
    "register_sweepers",
    "sweep_position",
]

# Passed to every run by its launcher, in this process or on another machine.
_TOTAL = "VMFER_RUNS_OF_SWEEP"
_LONGEST_NAME = 80


def sweep_position() -> tuple[int, int] | None:
    """The number of the current run in its sweep, from 1, and the number of runs.

    ``None`` outside a sweep.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    job = HydraConfig.get().job
    total = job.env_set.get(_TOTAL)
    return None if total is None else (int(job.num) + 1, int(total))


def register_sweepers() -> None:
    """Makes Hydra use the sweepers of this package: ``basic``, its default, and ``optuna``."""
    from vmfer_recipes.training.search import SearchConf, SearchSweeper

    classes = Plugins.instance().class_name_to_class  # first: it registers Hydra's own sweepers
    for name, conf, sweeper in (
        ("basic", GridConf, GridSweeper),
        ("optuna", SearchConf, SearchSweeper),
    ):
        ConfigStore.instance().store(name, conf, group="hydra/sweeper", provider="vmfer_recipes")
        # Hydra accepts only this package; Plugins.register() would use the class's own.
        classes[conf._target_] = sweeper


@dataclass
class GridConf:
    """The configuration of :class:`GridSweeper`, with the keys of Hydra's basic sweeper."""

    _target_: str = "hydra_plugins.vmfer_recipes.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


@dataclass
class Job:
    """A run of a sweep.

    Attributes:
        overrides: its overrides, one value for each key.
        swept: the keys whose values differ between runs.
        hydra: its composed configuration, with that of Hydra.
        config: the same as the recipe receives it, validated.
    """

    overrides: list[str]
    swept: list[str]
    hydra: DictConfig
    config: Any = None

    @property
    def name(self) -> str:
        """What distinguishes the run: ``batch_size=64 seed=1``."""
        values = self.values
        return " ".join(f"{key}={values[key]}" for key in self.swept or values)

    @property
    def values(self) -> dict[str, str]:
        """The values of its overrides, as strings."""
        return {key: value for key, _, value in (each.partition("=") for each in self.overrides)}

    def validate(self) -> None:
        """Sets ``config``. Raises ``UserError`` for wrong values."""
        task = self.hydra.copy()
        with open_dict(task):
            del task["hydra"]
        self.config = to_config(task)

    @property
    def arguments(self) -> list[str]:
        """The overrides that start it, with its directory."""
        run_dir = str(self.config.run_dir).replace("\\", "\\\\").replace("'", "\\'")
        return [*self.overrides, f"run_dir='{run_dir}'"]


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
        self, overrides: Sequence[str], swept: list[str], number: int, *, told_apart: bool = False
    ) -> Job:
        """Composes and validates one run.

        Args:
            overrides: one value for each key.
            swept: the keys whose values differ between runs.
            number: its number in the sweep, from 0.
            told_apart: whether swept keys become part of the run directory if it does not depend on
                them.
        """
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = number
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(composed)  # for ${hydra:...}
        job = Job(list(overrides), swept, composed)
        try:
            with nothing_started(job):
                job.validate()
                if told_apart:
                    composed.run_dir = _with_swept_keys(_template(composed), job)
                    job.config.run_dir = composed.run_dir
        finally:
            HydraConfig.instance().cfg = before
        return job

    def launch(self, jobs: Sequence[Job], first: int, total: int) -> list[JobReturn]:
        """Starts runs and waits for them.

        Args:
            jobs: the runs.
            first: the number of the first one in the sweep, from 0.
            total: the number of runs of the sweep.
        """
        position = f"++hydra.job.env_set.{_TOTAL}='{total}'"
        arguments = [[*job.arguments, position] for job in jobs]
        return list(self.launcher.launch(arguments, initial_job_idx=first))


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
        jobs = self._jobs(self.parse(arguments))
        _check_directories(jobs)
        check_parts(jobs)
        self.record([job.config for job in jobs])
        size, returns = self._batch or len(jobs), []
        for first in range(0, len(jobs), size):
            results = self.launch(jobs[first : first + size], first, len(jobs))
            for result in results:
                _ = result.return_value  # raises the error of the run
            returns.append(results)
        return returns

    def _jobs(self, overrides: list[Override]) -> list[Job]:
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(
                    f"{override.input_line} is a range to search, not a list of values: add "
                    "hydra/sweeper=optuna, or list the values."
                )
        swept = [each.get_key_element() for each in overrides if each.is_sweep_override()]
        (grid,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        if not grid:
            raise UserError(f"This sweep has no runs: {' '.join(swept)} has no values.")
        is_explicit = any(each.get_key_element() == "run_dir" for each in overrides)
        jobs = [
            self.compose(given, swept, number, told_apart=not is_explicit)
            for number, given in enumerate(grid)
        ]
        for job in jobs:
            _check_experiment(job)
        return jobs


@contextmanager
def nothing_started(job: Job) -> Iterator[None]:
    """A context whose errors name the run that they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error} No run was started; this one is {job.name}.") from error


def _with_swept_keys(template: str, job: Job) -> str:
    """The pattern of a run directory, extended by the swept keys that it does not depend on.

    They come before a last part with the seed, in the order of their names, so that the directory
    depends neither on their order nor on the other values of the sweep.
    """
    used = set(re.findall(r"\$\{([^}:]+)\}", template))
    added = []
    for key in sorted(job.swept, key=lambda key: key.lstrip("+")):
        name = key.lstrip("+")
        is_used = any(each == name or each.startswith(f"{name}.") for each in used)
        if name == "experiment":  # most set a run_dir of their own
            is_used = template != _default_template(type(job.config))
        if not is_used:
            added.append(f"{name}_{_as_name(_value(job, key))}")
    first, slash, last = template.rpartition("/")
    if "${seed}" in last:
        return "/".join([*([first] if slash else []), *added, last])
    return "/".join([template, *added])


def _check_experiment(job: Job) -> None:
    """Raises ``UserError`` if one of several experiments has lists of values that are not used."""
    lists = job.hydra.hydra.sweeper.params or {}
    ignored = [key for key in lists if key not in job.values]
    if ignored and "+experiment" in job.swept:
        raise UserError(
            f"+experiment={job.values['+experiment']} is a sweep over {', '.join(ignored)}: start "
            "one experiment at a time."
        )


def _check_directories(jobs: list[Job]) -> None:
    """Raises ``UserError`` if two runs have one directory, or one holds another run already."""
    found: dict[Path, Job] = {}
    for job in jobs:
        place = Path(job.config.run_dir).absolute()
        other = found.setdefault(place, job)
        if other is not job:
            raise _collision(other, job)
    for job in jobs:
        if isinstance(job.config, TrainingConfig):
            with nothing_started(job):
                RunDirectory(job.config).check()


def _collision(one: Job, other: Job) -> UserError:
    same = f"Two runs of this sweep have run_dir={one.config.run_dir}: {one.name} and {other.name}."
    keys = [key for key in one.swept if _value(one, key) != _value(other, key)]
    if not keys:
        return UserError(f"{same} They are the same: give each value once.")
    template = "/".join([_template(one.hydra), *(_reference(key, one) for key in keys)])
    if re.search(r"\$\{[^}]*\$\{", template):
        template = f'"{template}"'  # Hydra parses nested references between quotes only
    message = f"{same} Tell them apart with 'run_dir={template}'"
    if any(each.partition("=")[0] == "run_dir" for each in one.overrides):
        message += ", or leave run_dir out"
    return UserError(f"{message}.")


def _reference(key: str, job: Job) -> str:
    """The value of a swept key, as a run directory refers to it."""
    name = key.lstrip("+")
    if name == "experiment":
        return "${hydra:runtime.choices.experiment}"
    part = getattr(job.config, name, None)
    if isinstance(part, Config):
        names = ("path", "name", "kind")  # two classes with one name differ by their paths
        name += "." + next(each for each in names if hasattr(part, each))
    return f"${{{name}}}"


def check_parts(jobs: list[Job]) -> None:
    """Raises ``UserError`` for an environment that cannot be made.

    Each one is made once, because a misspelled name must not end a run hours later.
    """
    from vmfer_recipes.training.environments import make_environment

    seen: set[str] = set()
    for job in jobs:
        cfg = job.config
        if not isinstance(cfg, TrainingConfig):
            continue
        goals, part = cfg.replay.kind == "her", repr((cfg.env, cfg.replay.kind))
        if part not in seen:
            with nothing_started(job):
                make_environment(cfg.env, cfg.seed, goals=goals).close()
        seen.add(part)


def _template(composed: DictConfig) -> str:
    """The run directory as written, with unresolved references."""
    content: Any = OmegaConf.to_container(composed, resolve=False)
    return str(content["run_dir"])


def _default_template(config: type[Config]) -> str:
    (default,) = (key.default for key in describe(config) if key.name == "run_dir")
    return str(default)


def _value(job: Job, key: str) -> Any:
    """The value of a swept key: the name of a choice, or the parsed value."""
    name = key.lstrip("+")
    if name == "experiment" or name in groups(type(job.config)):
        return job.values[key]
    value = OmegaConf.select(job.hydra, name)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _as_name(value: Any) -> str:
    """A value as part of a directory name, which needs no quotes in a shell."""
    if isinstance(value, dict):
        value = [f"{key}-{_as_name(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return "-".join(map(_as_name, value)) or "none"
    if isinstance(value, bool) or value is None:
        value = {True: "true", False: "false", None: "null"}[value]
    return re.sub(r"[^\w.+-]", "-", str(value))[:_LONGEST_NAME]
