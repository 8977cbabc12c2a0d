"""The runs of a sweep: their configurations, and a directory for each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.config._hydra import current_job
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import groups
from vmfer_recipes.config.names import flat, folder_name
from vmfer_recipes.config.plugins import import_class, is_custom
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import to_config
from vmfer_recipes.run.directory import RunDirectory

_LONGEST_NAME = 80

# The launcher passes this variable to every run, in this process or on another machine.
_TOTAL = "VMFER_RUNS_OF_SWEEP"


class Job:
    """A run of a sweep.

    Args:
        overrides: its overrides, one for each key.
        swept: the keys whose values differ between runs.

    Attributes:
        values: the values of the overrides as written, by key.
        name: what distinguishes the run, ``batch_size=64 seed=1``.
        config: the validated configuration, after ``validate``.
        references: how a pattern of a directory refers to the swept keys, after ``validate``.
    """

    config: Any
    references: str

    def __init__(self, overrides: list[str], swept: list[str]) -> None:
        self.values = dict(each.split("=", 1) for each in overrides)
        self._overrides, self._swept = overrides, swept
        self.name = " ".join(f"{key}={self.values[key]}" for key in swept or self.values)

    def validate(self, composed: DictConfig, number: int) -> None:
        """Sets the configuration, with a directory that depends on all swept keys."""
        with current_job(composed, number) as task, self.not_started():
            written: Any = OmegaConf.to_container(task, resolve=False)
            self.config = to_config(task)
            choices = {*groups(type(self.config)), "experiment"}
            parts = {}
            for key in self._swept:
                name = key.lstrip("+")
                value = self.values[key] if name in choices else OmegaConf.select(task, name)
                parts[name] = _as_name(value)[:_LONGEST_NAME]
            known = flat(self.config.as_dict())
            references = (each for name in parts for each in (name, f"{name}.name"))
            self.references = " ".join(f"${{{each}}}" for each in references if each in known)
            if "run_dir" not in self.values:
                task.run_dir = self._extended(written["run_dir"], parts)
                self.config.run_dir = task.run_dir

    def _extended(self, template: str, parts: dict[str, str]) -> str:
        """The pattern of a directory, extended by the swept keys that it does not depend on.

        The keys are inserted in alphabetical order, before the last part if that holds the seed.
        The directory thus depends neither on their order on the command line nor on other values of
        the sweep.
        """
        used = re.findall(r"\$\{([^}:]+)\}", template)
        if template != type(self.config).run_dir:  # as in most experiments
            used.append("experiment")
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

    Each environment and each class is tried once, because a misspelled name must not end a run
    hours later.
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
            parts = {group: getattr(cfg, group) for group in ("sampler", "replay", "logger")}
            paths = {group: part._target_ for group, part in parts.items() if is_custom(part)}
            for group, path in paths.items():
                if path not in seen:
                    import_class(path, object, group)
            seen |= {task, *paths.values()}


def _as_name(value: Any) -> str:
    """Writes a value as part of a directory name that needs no quotes in a shell."""
    if isinstance(value, Mapping):
        value = [f"{key}-{_as_name(item)}" for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "-".join(map(_as_name, value)) or "none"
    if isinstance(value, bool) or value is None:
        value = "null" if value is None else str(value).lower()
    return folder_name(value)


def position_override(total: int) -> str:
    """The override that tells a run the number of runs of its sweep."""
    return f"++hydra.job.env_set.{_TOTAL}='{total}'"


def sweep_position() -> tuple[int, int] | None:
    """The number of the current run in its sweep, from 1, and the number of runs.

    ``None`` outside a sweep.
    """
    total = os.environ.get(_TOTAL)
    return None if total is None else (int(HydraConfig.get().job.num) + 1, int(total))
