"""The task and the method of a run, and the baseline that a method is compared with."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from vmfer_recipes.reporting.runs import Run, frozen

__all__ = ["BASELINE", "Method", "Task", "baseline_of", "label_methods", "label_tasks"]

BASELINE = "uniform"  # the sampler that all others are compared with

# In other algorithms, extra critics only measure the uncertainty: the baseline is the same for any
# number of them.
_ALL_CRITICS_COUNT = ("redq", "tqc")


@dataclass(frozen=True, order=True)
class Task:
    """An environment, version included, and how long it was trained on."""

    environment: str
    total_frames: int
    variant: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, run: Run) -> Task:
        """The task of a run."""
        return cls(run.environment, run.total_frames, frozen(run.variant))

    @property
    def name(self) -> str:
        """The environment without its version: ``Hopper``."""
        return re.sub(r"-v\d+$", "", self.environment)

    @property
    def version(self) -> str:
        """The version: ``v4``, or nothing."""
        found = re.search(r"-(v\d+)$", self.environment)
        return found.group(1) if found else ""


@dataclass(frozen=True, order=True)
class Method:
    """An algorithm with all its hyperparameters. Runs of one method differ only in the seed."""

    algorithm: str
    replay: str
    sampler: str
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, run: Run) -> Method:
        """The method of a run."""
        return cls(run.algorithm, run.replay, run.sampler, frozen(run.settings))

    @property
    def family(self) -> str:
        """What a method shares with its baseline, by name: ``td3/uniform``."""
        return f"{self.algorithm}/{self.replay}"

    @property
    def family_label(self) -> str:
        """The family as it is shown: ``TD3``, ``SAC+per_rank``."""
        return self.algorithm.upper() + ("" if self.replay == "uniform" else f"+{self.replay}")

    def differing(self, other: Method) -> list[str]:
        """The hyperparameters in which two methods differ, except those of the sampler."""
        here, there = dict(self.settings), dict(other.settings)
        return [
            key
            for key in sorted(here.keys() | there.keys())
            if not key.startswith("sampler.") and here.get(key) != there.get(key)
        ]


def label_methods(cells: Iterable[tuple[Task, Method]]) -> dict[Method, str]:
    """A name for each method: ``TD3 · vmf_rank``.

    Methods that share a sampler are distinguished by the hyperparameters in which they differ on
    the same task.
    """
    alike: dict[tuple[Task, str, str], list[Method]] = defaultdict(list)
    for task, method in cells:
        alike[task, method.family, method.sampler].append(method)
    told: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (_, family, sampler), group in alike.items():
        differing = set(group[0].settings).symmetric_difference
        told[family, sampler] |= {key for method in group for key, _ in differing(method.settings)}
    labels = {}
    for method in {method for group in alike.values() for method in group}:
        settings = dict(method.settings)
        values = [
            f"{key.removeprefix('sampler.')}={settings.get(key, 'unset').strip(chr(39))}"
            for key in sorted(told[method.family, method.sampler])
        ]
        labels[method] = ", ".join([f"{method.family_label} · {method.sampler}", *values])
    return labels


def label_tasks(tasks: Iterable[Task]) -> dict[Task, str]:
    """A name for each task."""
    tasks = list(tasks)
    labels = {}
    for task in tasks:
        label = f"{task.environment}, {task.total_frames:,} steps"
        twins = [t for t in tasks if t != task and t.environment == task.environment]
        if any(twin.total_frames == task.total_frames for twin in twins):
            label += "".join(f", {key}={value}" for key, value in task.variant)
        labels[task] = label
    return labels


def baseline_of(method: Method, candidates: Iterable[Method]) -> tuple[Method | None, str]:
    """The method with ``sampler=uniform`` that a method may be compared with.

    Returns:
        the baseline, or ``None``; and in what it differs from the method, or why there is none.
    """
    uniform = [c for c in candidates if c.family == method.family and c.sampler == BASELINE]
    if not uniform:
        return None, f"no finished run of {method.family_label} with sampler={BASELINE}"
    nearest = min(uniform, key=lambda candidate: (len(method.differing(candidate)), candidate))
    differing = method.differing(nearest)
    values = dict(nearest.settings)
    told = ", ".join(f"{key}={values.get(key, 'unset')}" for key in differing)
    irrelevant = set() if method.algorithm in _ALL_CRITICS_COUNT else {"num_critics"}
    if set(differing) <= irrelevant:
        return nearest, told
    return None, f"the nearest run with sampler={BASELINE} has other hyperparameters: {told}"
