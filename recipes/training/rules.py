"""What the keys of a configuration may hold: checks that all programs share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vmfer_recipes.training.errors import UserError, first_line, nearest

__all__ = ["Rules"]

_MOST = 10**9  # larger numbers overflow somewhere in PyTorch or NumPy
_MOST_THREADS = 1024  # OpenMP ends the process where it cannot start as many


@dataclass(frozen=True)
class Rules:
    """The keys of a program, by what they hold. Any may also hold ``hidden``, a list of sizes.

    Args:
        integers: whole numbers, and their smallest values. 1e6 becomes 1000000.
        numbers: numbers, and between which values they lie.
        texts: names.
        choices: what a key may be.
        others: keys that hold anything, or are checked elsewhere.
    """

    integers: dict[str, int]
    numbers: dict[str, tuple[float, float]]
    texts: tuple[str, ...]
    choices: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def known_keys(self) -> set[str]:
        """All keys that a configuration may have."""
        return {
            *self.integers, *self.numbers, *self.texts, *self.choices, *self.others, "hidden"
        }  # fmt: skip

    def check(self, cfg: DictConfig) -> None:
        """Refuses unknown keys and values that cannot be."""
        try:
            self._make_whole(cfg)
            OmegaConf.resolve(cfg)
        except OmegaConfBaseException as error:
            raise UserError(
                f"{' '.join(sys.argv[1:])!r} cannot be resolved ({first_line(error)}): refer to "
                "keys that exist."
            ) from error
        for key in _leaves(cfg):
            if key not in self.known_keys():
                raise UserError(
                    f"There is no key {key}. Did you mean: {nearest(key, self.known_keys())}?"
                )
            self._check_value(key, OmegaConf.select(cfg, key))
        groups = {key.split(".")[0] for key in self.known_keys() if "." in key}
        for group in sorted(groups - {*map(str, cfg)}):
            raise UserError(f"There is no {group}: leave {group}= out, or name a choice.")

    def _make_whole(self, cfg: DictConfig) -> None:
        """Before other keys, such as ``run_dir``, refer to them."""
        for key in self.integers:
            value = OmegaConf.select(cfg, key, throw_on_resolution_failure=False)
            if isinstance(value, float) and value.is_integer():
                OmegaConf.update(cfg, key, int(value))

    def _check_value(self, key: str, value: Any) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key in self.integers:
            least, most = self.integers[key], _MOST_THREADS if key == "threads" else _MOST
            if not (is_number and isinstance(value, int) and least <= value <= most):
                raise UserError(
                    f"{key} must be a whole number from {least} to {most}, got {value!r}."
                )
        elif key in self.numbers:
            low, high = self.numbers[key]
            high = min(high, _MOST)
            if not (is_number and low <= value <= high):
                raise UserError(f"{key} must be a number from {low:g} to {high:g}, got {value!r}.")
        elif key in self.choices:
            known = self.choices[key]
            if type(value) is not type(known[0]) or value not in known:
                choices = ", ".join(str(choice).lower() for choice in known)
                raise UserError(f"{key} must be one of {choices}, got {value!r}.")
        elif key in self.texts:
            if not (isinstance(value, str) and value):
                raise UserError(f"{key} must be a name, got {value!r}.")
        elif key == "hidden" and not (
            isinstance(value, ListConfig)
            and all(type(size) is int and 0 < size <= _MOST for size in value)
        ):
            raise UserError(
                f"hidden must be a list of layer sizes such as [256,256], got {value!r}."
            )


def _leaves(cfg: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in map(str, cfg):
        node = cfg._get_node(name)
        is_group = isinstance(node, DictConfig) and len(node) > 0
        keys += _leaves(cfg[name], f"{prefix}{name}.") if is_group else [f"{prefix}{name}"]
    return keys
