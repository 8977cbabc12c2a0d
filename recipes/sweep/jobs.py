"""The runs of a sweep: their configurations, and a directory for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, describe
from vmfer_recipes.config.names import folder_name
from vmfer_recipes.config.plugins import import_class, is_custom
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.directory import RunDirectory

_LONGEST_NAME = 80

# The launcher passes this key to every run, in this process or on another machine.
_TOTAL = "VMFER_RUNS_OF_SWEEP"


@dataclass
class Job:
    """A run of a sweep."""

    overrides: list[str]  # with one value for each key
    swept: dict[str, Any]  # names of choices or parsed values, by the keys that differ between runs
    template: str = ""  # the directory as written, with unresolved references
    config: Any = None  # the validated configuration

    @property
    def values(self) -> dict[str, str]:
        """The values of its overrides, as strings."""
        return {key: value for key, _, value in (each.partition("=") for each in self.overrides)}

    @property
    def arguments(self) -> list[str]:
        """The overrides that start it, with its directory."""
        run_dir = str(self.config.run_dir).replace("\\", "\\\\").replace("'", "\\'")
        return [*self.overrides, f"run_dir='{run_dir}'"]

    @property
    def name(self) -> str:
        """What distinguishes the run: ``batch_size=64 seed=1``."""
        values = self.values
        return " ".join(f"{key}={values[key]}" for key in self.swept or values)

    @contextmanager
    def not_started(self) -> Iterator[None]:
        """A context whose errors name the run."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{error} No run was started; this one is {self.name}.") from error


def with_swept_keys(job: Job) -> str:
    """The pattern of a run directory, extended by the swept keys that it does not depend on.

    The keys are inserted in alphabetical order, before the last part if that holds the seed. The
    directory thus depends neither on their order on the command line nor on other values of the
    sweep.
    """
    template, added = job.template, []
    used = set(re.findall(r"\$\{([^}:]+)\}", template))
    for key in sorted(job.swept, key=lambda key: key.lstrip("+")):
        name = key.lstrip("+")
        is_used = any(each == name or each.startswith(f"{name}.") for each in used)
        if name == "experiment":  # most experiments set a run_dir
            defaults = {each.name: each.default for each in describe(type(job.config))}
            is_used = template != defaults["run_dir"]
        if not is_used:
            added.append(f"{name}_{_as_name(job.swept[key])}")
    first, slash, last = template.rpartition("/")
    if "${seed}" in last:
        return "/".join([*([first] if slash else []), *added, last])
    return "/".join([template, *added])


def check_directories(jobs: list[Job]) -> None:
    """Raises ``UserError`` if runs share a directory, or if a directory holds another run."""
    found: dict[Path, Job] = {}
    for job in jobs:
        other = found.setdefault(Path(job.config.run_dir).absolute(), job)
        if other is not job:
            raise _collision(other, job)
    for job in jobs:
        if isinstance(job.config, TrainingConfig):
            with job.not_started():
                RunDirectory(job.config).check()


def check_parts(jobs: list[Job]) -> None:
    """Raises ``UserError`` for an environment or a class of the user that cannot be used.

    Each one is tried once, because a misspelled name must not end a run hours later.
    """
    from vmfer_recipes.environments.make import make_environment

    seen: set[Any] = set()
    for job in jobs:
        cfg = job.config
        if not isinstance(cfg, TrainingConfig):
            continue
        task = repr((cfg.env, cfg.replay.has_goals))
        with job.not_started():
            if task not in seen:
                make_environment(cfg.env, cfg.seed, goals=cfg.replay.has_goals).close()
                seen.add(task)
            for group in ("sampler", "replay", "logger"):
                chosen = getattr(cfg, group)
                if is_custom(chosen) and (group, chosen._target_) not in seen:
                    import_class(chosen._target_, object, group)
                    seen.add((group, chosen._target_))


def _collision(one: Job, other: Job) -> UserError:
    same = f"Two runs of this sweep have run_dir={one.config.run_dir}: {one.name} and {other.name}."
    keys = [key for key in one.swept if one.swept[key] != other.swept[key]]
    if not keys:
        return UserError(f"{same} They are the same: give each value once.")
    template = "/".join([one.template, *(_reference(key, one) for key in keys)])
    if re.search(r"\$\{[^}]*\$\{", template):
        template = f'"{template}"'  # Hydra parses nested references only between quotes
    message = f"{same} Tell them apart with 'run_dir={template}'"
    if "run_dir" in one.values:
        message += ", or leave run_dir out"
    return UserError(f"{message}.")


def _reference(key: str, job: Job) -> str:
    """A reference to the value of a swept key, for the pattern of a run directory."""
    name = key.lstrip("+")
    if name == "experiment":
        return "${hydra:runtime.choices.experiment}"
    part = getattr(job.config, name, None)
    if isinstance(part, Config):
        name += ".name" if hasattr(part, "name") else "._target_"
    return f"${{{name}}}"


def _as_name(value: Any) -> str:
    """Writes a value as part of a directory name that needs no quotes in a shell."""
    if isinstance(value, dict):
        value = [f"{key}-{_as_name(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return "-".join(map(_as_name, value)) or "none"
    if isinstance(value, bool) or value is None:
        value = {True: "true", False: "false", None: "null"}[value]
    return folder_name(value)[:_LONGEST_NAME]


def position_override(total: int) -> str:
    """The override that tells a run the number of runs of its sweep."""
    return f"++hydra.job.env_set.{_TOTAL}='{total}'"


def sweep_position() -> tuple[int, int] | None:
    """The number of the current run in its sweep, from 1, and the number of runs.

    ``None`` outside a sweep.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    job = HydraConfig.get().job
    total = job.env_set.get(_TOTAL)
    return None if total is None else (int(job.num) + 1, int(total))
