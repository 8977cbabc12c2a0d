"""The task and the method of a run, and their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from vmfer_recipes.config.names import differing

__all__ = ["Method", "Task", "distinguishing_keys", "frozen", "label_methods", "label_tasks"]

Settings = tuple[tuple[str, str], ...]


def frozen(settings: dict[str, Any]) -> Settings:
    """Settings as something that can be compared and hashed."""
    return tuple(sorted((key, repr(value)) for key, value in settings.items()))


@dataclass(frozen=True, order=True)
class Task:
    """An environment, version included, and how long it was trained on.

    ``variant`` holds the keys of ``env.`` besides the name that differ from their defaults, and the
    dataset of an offline run.
    """

    environment: str
    total_frames: int
    variant: Settings = ()

    @property
    def name(self) -> str:
        """The environment without its version: ``Hopper``."""
        return re.sub(r"-v\d+$", "", self.environment)

    @property
    def version(self) -> str:
        """The version: ``v4``, or nothing."""
        return self.environment.removeprefix(self.name)[1:]


@dataclass(frozen=True, order=True)
class Method:
    """An algorithm with all its hyperparameters. Runs of one method differ only in the seed."""

    algorithm: str
    replay: str
    sampler: str
    settings: Settings

    @property
    def family(self) -> str:
        """Algorithm and replay by name: ``td3/uniform``."""
        return f"{self.algorithm}/{self.replay}"

    @property
    def family_label(self) -> str:
        """The family as it is shown: ``TD3``, ``SAC+per_rank``."""
        return self.algorithm.upper() + ("" if self.replay == "uniform" else f"+{self.replay}")

    def differing(self, other: Method, free: Collection[str]) -> list[str]:
        """The hyperparameters in which two methods differ, without those or the groups ``free``."""
        keys = differing(dict(self.settings), dict(other.settings))
        return [key for key in keys if key.split(".")[0] not in free]


def distinguishing_keys(cells: Iterable[tuple[Task, Method]]) -> dict[tuple[str, str], set[str]]:
    """By family and sampler, the hyperparameters in which methods differ on the same task."""
    first: dict[tuple[Task, str, str], Method] = {}
    told: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, method in cells:
        other = first.setdefault((task, method.family, method.sampler), method)
        told[method.family, method.sampler].update(method.differing(other, ()))
    return told


def label_methods(cells: Collection[tuple[Task, Method]], named: set[str]) -> dict[Method, str]:
    """A name for each method: ``TD3 · vmf_rank``.

    Methods that share a sampler are distinguished by the hyperparameters in which they differ on
    the same task. Other keys in ``named`` are shown if they vary between methods of an algorithm,
    unless the name of the sampler or of the replay already stands for them.
    """
    told = distinguishing_keys(cells)
    named = {key for key in named if not key.startswith(("sampler.", "replay."))}
    values: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for _, method in cells:
        for key in named:
            values[method.algorithm, key].add(dict(method.settings).get(key))
    labels = {}
    for _, method in cells:
        settings = dict(method.settings)
        varying = {key for key in named if len(values[method.algorithm, key]) > 1}
        pairs = [
            f"{key.removeprefix('sampler.')}={settings.get(key, 'unset').strip(chr(39))}"
            for key in sorted(told[method.family, method.sampler] | varying)
        ]
        labels[method] = ", ".join([f"{method.family_label} · {method.sampler}", *pairs])
    return labels


def label_tasks(tasks: Collection[Task]) -> dict[Task, str]:
    """A name for each task, with its variant if only this distinguishes it from another."""
    labels = {}
    for task in tasks:
        labels[task] = f"{task.environment}, {task.total_frames:,} steps"
        size = (task.environment, task.total_frames)
        if sum((other.environment, other.total_frames) == size for other in tasks) > 1:
            labels[task] += "".join(f", {key}={value}" for key, value in task.variant)
    return labels
