"""The task and the method of a run, and their names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from vmfer_recipes.config.names import CONFIGS, differing, flat

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

    @cached_property
    def values(self) -> dict[str, str]:
        """The settings by key, as Python writes them."""
        return dict(self.settings)

    @property
    def family(self) -> str:
        """Algorithm and replay by name: ``td3/uniform``."""
        return f"{self.algorithm}/{self.replay}"

    @property
    def is_default(self) -> bool:
        """Whether all hyperparameters of a recipe of this package have their default values."""
        choices = [f"sampler={self.sampler}", f"replay={self.replay}"]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose(self.algorithm, choices)
        defaults = dict(frozen(flat(OmegaConf.to_container(composed))))
        return all(value == defaults.get(key, value) for key, value in self.settings)


def family_label(family: str) -> str:
    """A family as it is shown: ``TD3``, ``SAC+per_rank``."""
    algorithm, _, replay = family.partition("/")
    return algorithm.upper() + (f"+{replay}" if replay not in ("", "uniform") else "")


def distinguishing_keys(cells: Iterable[tuple[Task, Method]]) -> dict[tuple[str, str], set[str]]:
    """By family and sampler, the hyperparameters in which methods differ on the same task."""
    first: dict[tuple[Task, str, str], Method] = {}
    told: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, method in cells:
        other = first.setdefault((task, method.family, method.sampler), method)
        told[method.family, method.sampler].update(differing(method.values, other.values))
    return told


def label_methods(cells: Collection[tuple[Task, Method]], named: set[str]) -> dict[Method, str]:
    """A name for each method: ``TD3 · vmf_rank``.

    Methods that share a sampler are distinguished by the hyperparameters in which they differ on
    the same task. Other keys in ``named`` are shown if they vary between methods of an algorithm,
    unless the name of the sampler or of the replay already stands for them.
    """
    told = distinguishing_keys(cells)
    named = {key for key in named if not key.startswith(("sampler.", "replay."))}
    labels = {method: f"{family_label(method.family)} · {method.sampler}" for _, method in cells}
    for method in labels:
        peers = [other for other in labels if other.algorithm == method.algorithm]
        varying = {key for key in named if len({peer.values.get(key) for peer in peers}) > 1}
        for key in sorted(told[method.family, method.sampler] | varying):
            value = method.values.get(key, "unset").strip("'")
            labels[method] += f", {key.removeprefix('sampler.')}={value}"
    return labels


def label_tasks(tasks: Collection[Task]) -> dict[Task, str]:
    """A name for each task, with its variant if only this distinguishes it from another."""
    labels = {task: f"{task.environment}, {task.total_frames:,} steps" for task in tasks}
    alike = Counter(labels.values())
    return {
        task: label + "".join(f", {k}={v}" for k, v in task.variant if alike[label] > 1)
        for task, label in labels.items()
    }
