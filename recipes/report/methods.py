"""Tasks and methods, their names, and the baseline with which other methods are compared."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError, did_you_mean
from vmfer_recipes.config.names import CONFIGS, differing, flat, written

DEFAULT_BASELINE = "uniform"

# In these algorithms, critics beyond the second affect only uncertainties and TD errors.
_TWO_CRITICS_COUNT = ("td3", "sac", "crossq", "td3_bc")
# Samplers and replays that use neither, by name.
_WITHOUT_CRITICS = ("uniform", "fresh", "recent", "old", "on_policy", "her")
_SHORT = ("sampler", "replay")  # written for sampler.name and replay.name
_MOST_LISTED = 8

Settings = tuple[tuple[str, str], ...]


def frozen(settings: dict[str, Any]) -> Settings:
    """Settings as on the command line, which can be compared and hashed."""
    return tuple(sorted((key, written(value)) for key, value in settings.items()))


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
        """The settings by key, as on the command line."""
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
            value = method.values.get(key, "unset")
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


@dataclass(frozen=True)
class Baseline:
    """The settings of ``baseline=``: a sampler, or ``key=value`` pairs separated by commas.

    A method is compared with the method of the same algorithm that has these settings and is equal
    to it in all others. If a key of ``sampler`` or ``replay`` is named, all keys of this group may
    differ.

    Example:
        >>> str(Baseline("fresh")), str(Baseline("replay=per,sampler=fresh"))
        ('sampler=fresh', 'replay=per, sampler=fresh')
    """

    text: str = DEFAULT_BASELINE

    @cached_property
    def wanted(self) -> dict[str, str]:
        """The values of the baseline by dotted key."""
        if "=" not in self.text:
            return {"sampler.name": self.text.strip()}
        # A comma also separates the items of a list.
        pairs = [part.partition("=") for part in re.split(r",(?=\s*[\w.]+=)", self.text)]
        if not all(name.strip() and value.strip() for name, _, value in pairs):
            raise UserError(
                f"baseline={self.text} cannot be parsed: write the name of a sampler, or pairs "
                "such as baseline=replay=per,sampler=fresh."
            )
        wanted = {name.strip(): _normal(value.strip()) for name, _, value in pairs}
        return {f"{key}.name" if key in _SHORT else key: v for key, v in wanted.items()}

    @property
    def _free(self) -> set[str]:
        """The keys and groups that the settings name."""
        return {key.split(".")[0] for key in self.wanted}

    @property
    def is_default(self) -> bool:
        """Whether methods are compared as in the paper."""
        return self.wanted == {"sampler.name": DEFAULT_BASELINE}

    def __str__(self) -> str:
        return ", ".join(f"{key.removesuffix('.name')}={v}" for key, v in self.wanted.items())

    def matches(self, method: Method) -> bool:
        """Whether a method has the settings of the baseline."""
        return self.wanted.items() <= method.values.items()

    def family(self, method: Method) -> str:
        """What a method shares with its baseline, by name: ``td3/uniform`` or ``td3``."""
        return method.algorithm if "replay" in self._free else method.family

    def differing(self, method: Method, other: Method) -> list[str]:
        """The hyperparameters in which two methods differ, except those that may."""
        keys = differing(method.values, other.values)
        return [key for key in keys if key.split(".")[0] not in self._free]

    def order(self, method: Method) -> tuple[Any, ...]:
        """A sort key: by family, the baseline first, and hyperparameters by numeric value."""
        settings = tuple((key, _by_size(value)) for key, value in method.settings)
        replay = (method.replay != "uniform", method.replay)
        return self.family(method), not self.matches(method), replay, method.sampler, settings

    def check(self, cells: Collection[tuple[Task, Method]]) -> None:
        """Raises an error if no method has the settings."""
        known = {key for _, method in cells for key in method.values} | {*_SHORT}
        for key in self.wanted:
            if key not in known:
                raise UserError(
                    f"No run has the key {key} of baseline={self.text}. {did_you_mean(key, known)}"
                )
        if not self.is_default and not any(self.matches(method) for _, method in cells):
            raise UserError(f"No run matches baseline={self.text}: there are {_listed(cells)}.")

    def of(
        self, method: Method, task: Task, candidates: Iterable[Method]
    ) -> tuple[Method | None, str]:
        """The baseline of a method, if there is one, and how it differs, or why there is none."""

        def distance(other: Method) -> tuple[bool, int, Method]:
            keys = self.differing(method, other)
            usable = not keys or (keys == ["num_critics"] and _ignores_extra_critics(method, other))
            return not usable, len(keys), other

        family = self.family(method)
        matching = [m for m in candidates if self.family(m) == family and self.matches(m)]
        if not matching:
            return None, f"no finished run of {family_label(family)} with {self}"
        too_far, _, nearest = min(map(distance, matching))
        keys = self.differing(method, nearest)
        told = ", ".join(f"{key}={nearest.values.get(key, 'unset')}" for key in keys)
        if too_far:
            return None, f"the nearest run with {self} has other hyperparameters: {told}"
        alike = [(task, other) for other in matching if not self.differing(nearest, other)]
        if len(alike) > 1:
            raise UserError(
                f"Several settings match baseline={self.text}: {_listed(alike)}. Write one of "
                "them after baseline=."
            )
        return nearest, told


def _ignores_extra_critics(method: Method, baseline: Method) -> bool:
    """Whether the baseline would be the same with the method's number of critics."""
    fewest = min(int(each.values["num_critics"]) for each in (method, baseline))
    uses_none = {baseline.replay, baseline.sampler} <= {*_WITHOUT_CRITICS}
    return baseline.algorithm in _TWO_CRITICS_COUNT and fewest >= 2 and uses_none


def _normal(text: str) -> str:
    """A value that the user wrote, as it is written in settings."""
    try:
        return written(float(text))
    except ValueError:
        return text.replace(", ", ",")


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, value)


def _listed(cells: Collection[tuple[Task, Method]]) -> str:
    """Methods as they are written after ``baseline=``."""
    told = distinguishing_keys(cells)
    methods = {method for _, method in cells}
    has_replays = len({method.replay for method in methods}) > 1
    names = set()
    for method in methods:
        keys = ["replay.name"] * has_replays + ["sampler.name"]
        keys += sorted(told[method.family, method.sampler] & method.values.keys())
        names.add(",".join(f"{k.removesuffix('.name')}={method.values[k]}" for k in keys))
    return "; ".join([*sorted(names)[:_MOST_LISTED], *["..."] * (len(names) > _MOST_LISTED)])
