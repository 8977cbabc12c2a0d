"""The run directories of a sweep: each run has one of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, describe
from vmfer_recipes.config.names import folder_name
from vmfer_recipes.config.plugins import is_custom
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.directory import RunDirectory
from vmfer_recipes.sweep.jobs import Job

__all__ = ["check_directories", "with_swept_keys"]

_LONGEST_NAME = 80


def with_swept_keys(job: Job) -> str:
    """The pattern of a run directory, extended by the swept keys that it does not depend on.

    They come before a last part with the seed, in the order of their names, so that the directory
    depends neither on their order nor on the other values of the sweep.
    """
    template, added = job.template, []
    used = set(re.findall(r"\$\{([^}:]+)\}", template))
    for key in sorted(job.swept, key=lambda key: key.lstrip("+")):
        name = key.lstrip("+")
        is_used = any(each == name or each.startswith(f"{name}.") for each in used)
        if name == "experiment":  # most set a run_dir of their own
            defaults = {each.name: each.default for each in describe(type(job.config))}
            is_used = template != defaults["run_dir"]
        if not is_used:
            added.append(f"{name}_{_as_name(job.swept[key])}")
    first, slash, last = template.rpartition("/")
    if "${seed}" in last:
        return "/".join([*([first] if slash else []), *added, last])
    return "/".join([template, *added])


def check_directories(jobs: list[Job]) -> None:
    """Raises ``UserError`` if two runs have one directory, or one holds another run already."""
    found: dict[Path, Job] = {}
    for job in jobs:
        other = found.setdefault(Path(job.config.run_dir).absolute(), job)
        if other is not job:
            raise _collision(other, job)
    for job in jobs:
        if isinstance(job.config, TrainingConfig):
            with job.not_started():
                RunDirectory(job.config).check()


def _collision(one: Job, other: Job) -> UserError:
    same = f"Two runs of this sweep have run_dir={one.config.run_dir}: {one.name} and {other.name}."
    keys = [key for key in one.swept if one.swept[key] != other.swept[key]]
    if not keys:
        return UserError(f"{same} They are the same: give each value once.")
    template = "/".join([one.template, *(_reference(key, one) for key in keys)])
    if re.search(r"\$\{[^}]*\$\{", template):
        template = f'"{template}"'  # Hydra parses nested references between quotes only
    message = f"{same} Tell them apart with 'run_dir={template}'"
    if "run_dir" in one.values:
        message += ", or leave run_dir out"
    return UserError(f"{message}.")


def _reference(key: str, job: Job) -> str:
    """The value of a swept key, as a run directory refers to it."""
    name = key.lstrip("+")
    if name == "experiment":
        return "${hydra:runtime.choices.experiment}"
    part = getattr(job.config, name, None)
    if isinstance(part, Config):
        # Two classes of users with one name differ by their paths.
        name += "._target_" if is_custom(part) or not hasattr(part, "name") else ".name"
    return f"${{{name}}}"


def _as_name(value: Any) -> str:
    """A value as part of a directory name, which needs no quotes in a shell."""
    if isinstance(value, dict):
        value = [f"{key}-{_as_name(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return "-".join(map(_as_name, value)) or "none"
    if isinstance(value, bool) or value is None:
        value = {True: "true", False: "false", None: "null"}[value]
    return folder_name(value)[:_LONGEST_NAME]
