"""The baseline: the settings with which other methods are compared."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from vmfer_recipes.config.errors import UserError, did_you_mean
from vmfer_recipes.report.methods import Method, Task, distinguishing_keys

__all__ = ["DEFAULT_BASELINE", "Baseline"]

DEFAULT_BASELINE = "uniform"

# In these algorithms, critics beyond the second affect only uncertainties and TD errors.
_TWO_CRITICS_COUNT = ("td3", "sac", "crossq", "td3_bc")
# Samplers and replays that use neither, by kind or, if that is not known, by name.
_WITHOUT_CRITICS = {*map(repr, ("shared", "fresh", "recent", "old", "on_policy", "uniform", "her"))}
_SHORT = ("sampler", "replay")  # written for sampler.name and replay.name
_MOST_LISTED = 8


@dataclass(frozen=True)
class Baseline:
    """The settings of the baseline, as given by ``baseline=``.

    A method is compared with the method of the same algorithm that has these settings and is equal
    to it in all others. If a key of ``sampler`` or ``replay`` is named, all keys of this group may
    differ.

    Args:
        text: the name of a sampler, or ``key=value`` pairs separated by commas.

    Example:
        >>> str(Baseline("fresh")), str(Baseline("replay=per,sampler=fresh"))
        ('sampler=fresh', 'replay=per, sampler=fresh')
    """

    text: str = DEFAULT_BASELINE

    @property
    def wanted(self) -> dict[str, str]:
        """The values of the baseline by key, as written."""
        if "=" not in self.text:
            return {"sampler": self.text.strip()}
        # A comma also separates the items of a list.
        pairs = [part.partition("=") for part in re.split(r",(?=\s*[\w.]+=)", self.text)]
        if not all(name.strip() and value.strip() for name, _, value in pairs):
            raise UserError(
                f"baseline={self.text} cannot be parsed: write the name of a sampler, or pairs "
                "such as baseline=replay=per,sampler=fresh."
            )
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def full(self) -> dict[str, str]:
        """The same by dotted key: ``sampler.name`` instead of ``sampler``."""
        return {f"{key}.name" if key in _SHORT else key: v for key, v in self.wanted.items()}

    @property
    def _free(self) -> set[str]:
        return {key.split(".")[0] for key in self.wanted}

    @property
    def is_default(self) -> bool:
        """Whether methods are compared as in the paper."""
        return self.wanted == {"sampler": DEFAULT_BASELINE}

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.wanted.items())

    def matches(self, method: Method) -> bool:
        """Whether a method has the settings of the baseline."""
        settings = dict(method.settings)
        return all(k in settings and _is_equal(settings[k], v) for k, v in self.full.items())

    def family(self, method: Method) -> str:
        """What a method shares with its baseline, by name: ``td3/uniform`` or ``td3``."""
        return method.algorithm if "replay" in self._free else method.family

    def family_label(self, method: Method) -> str:
        """The family as it is shown: ``TD3``, ``SAC+per_rank``."""
        return method.algorithm.upper() if "replay" in self._free else method.family_label

    def differing(self, method: Method, other: Method) -> list[str]:
        """The hyperparameters in which two methods differ, except those that may."""
        return method.differing(other, self._free)

    def check(self, cells: Collection[tuple[Task, Method]]) -> None:
        """Raises an error unless the settings select one baseline for each method."""
        known = {key for _, method in cells for key, _ in method.settings} | {*_SHORT}
        for key in self.wanted:
            if key not in known:
                raise UserError(
                    f"No run has the key {key} of baseline={self.text}. {did_you_mean(key, known)}"
                )
        matching = [(task, method) for task, method in cells if self.matches(method)]
        if not matching and not self.is_default:
            raise UserError(f"No run matches baseline={self.text}: there are {_listed(cells)}.")
        alike = defaultdict(set)
        for task, method in matching:
            fixed = tuple(s for s in method.settings if s[0].split(".")[0] not in self._free)
            alike[task, fixed].add((task, method))
        for twins in alike.values():
            if len(twins) > 1:
                raise UserError(
                    f"Several settings match baseline={self.text}: {_listed(twins)}. Write one of "
                    "them after baseline=."
                )

    def of(self, method: Method, candidates: Iterable[Method]) -> tuple[Method | None, str]:
        """The baseline of a method.

        Returns:
            the baseline, or ``None``; and how it differs from the method, or why there is none.
        """
        matching = [
            candidate
            for candidate in candidates
            if self.family(candidate) == self.family(method) and self.matches(candidate)
        ]
        if not matching:
            return None, f"no finished run of {self.family_label(method)} with {self}"
        usable = [other for other in matching if self._is_comparable(method, other)]
        nearest = min(
            usable or matching, key=lambda other: (len(self.differing(method, other)), other)
        )
        values = dict(nearest.settings)
        differing = self.differing(method, nearest)
        told = ", ".join(f"{key}={values.get(key, 'unset')}" for key in differing)
        if usable:
            return nearest, told
        return None, f"the nearest run with {self} has other hyperparameters: {told}"

    def _is_comparable(self, method: Method, baseline: Method) -> bool:
        differing = self.differing(method, baseline)
        return not differing or (
            differing == ["num_critics"] and _ignores_extra_critics(method, baseline)
        )


def _ignores_extra_critics(method: Method, baseline: Method) -> bool:
    """Whether the baseline would be the same with the method's number of critics."""
    settings = dict(baseline.settings)
    fewest = min(int(dict(each.settings)["num_critics"]) for each in (method, baseline))
    kinds = {settings.get(f"{group}.kind", settings[f"{group}.name"]) for group in _SHORT}
    return baseline.algorithm in _TWO_CRITICS_COUNT and fewest >= 2 and kinds <= _WITHOUT_CRITICS


def _is_equal(setting: str, text: str) -> bool:
    """Whether a setting, as Python writes it, has a value, as written on the command line."""
    try:
        value: Any = ast.literal_eval(setting)
    except (ValueError, SyntaxError):
        value = setting
    if str(value) == text:
        return True
    try:
        written: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except (OmegaConfBaseException, YAMLError):
        return False
    return bool(written["value"] == value)


def _listed(cells: Collection[tuple[Task, Method]]) -> str:
    """Methods as they are written after ``baseline=``."""
    told = distinguishing_keys(cells)
    methods = {method for _, method in cells}
    has_replays = len({method.replay for method in methods}) > 1
    names = set()
    for method in methods:
        settings = dict(method.settings)
        pairs = [f"replay={method.replay}"] if has_replays else []
        pairs.append(f"sampler={method.sampler}")
        pairs += [
            f"{key}={settings[key].strip(chr(39))}"
            for key in sorted(told[method.family, method.sampler])
            if key in settings
        ]
        names.add(",".join(pairs))
    listed = sorted(names)
    return "; ".join(listed[:_MOST_LISTED] + ["..."] * (len(listed) > _MOST_LISTED))
