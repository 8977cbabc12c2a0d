"""Nested configurations as one dictionary, and the keys in which two of them differ."""

from __future__ import annotations

from typing import Any

__all__ = ["differing", "flat"]


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The keys in which two dictionaries differ, in alphabetical order.

    Example:
        >>> differing({"seed": 0, "tau": 0.1}, {"seed": 1, "tau": 0.1, "gamma": 0.9})
        ['gamma', 'seed']
    """
    keys = sorted(first.keys() | second.keys())
    return [key for key in keys if first.get(key) != second.get(key)]


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested configuration as one dictionary of dotted keys.

    Example:
        >>> flat({"seed": 0, "env": {"name": "Hopper-v4"}})
        {'seed': 0, 'env.name': 'Hopper-v4'}
    """
    if not isinstance(config, dict):
        return {prefix[:-1]: config}
    return {
        key: value
        for name, item in config.items()
        for key, value in flat(item, f"{prefix}{name}.").items()
    }
