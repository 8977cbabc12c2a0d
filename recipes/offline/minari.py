"""Datasets in Minari's format: episodes in an HDF5 file, metadata in a JSON file.

The files are read directly, so that nothing in them is executed. (The package minari
creates the environment that a dataset names if the dataset does not describe its spaces.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.names import MINARI_PREFIX

_EPISODE = "episode_"
_PER_STEP = ("actions", "rewards", "terminations", "truncations")


class Episode(NamedTuple):
    """The arrays of an episode of n steps."""

    observations: dict[str, np.ndarray]  # ``[n + 1, ...]``, by dotted key; "" for a plain array
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


class MinariFiles:
    """The files of one dataset: ``metadata.json`` and ``main_data.hdf5`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._metadata = json.loads((folder / "metadata.json").read_text())
            spec = self._metadata.get("env_spec")
            self._env_spec = json.loads(spec) if isinstance(spec, str) else {}
            kind = self._metadata.get("data_format", "hdf5")
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(
                f"{folder / 'metadata.json'} cannot be read ({first_line(error)}): download the "
                "dataset again."
            ) from error
        if kind != "hdf5":
            raise UserError(
                f"{folder} holds a dataset in the format {kind!r}, but only hdf5 is supported: "
                "create it with data_format='hdf5'."
            )

    @classmethod
    def find(cls, dataset: str) -> MinariFiles | None:
        """The files of ``minari:<id>`` or of a folder in Minari's format; ``None`` for others."""
        name = dataset.removeprefix(MINARI_PREFIX)
        local = Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser()
        folder = local / name if name != dataset else Path(dataset)
        for candidate in (folder / "data", folder):
            if (candidate / "metadata.json").exists():
                return cls(candidate)
        if name == dataset:
            return None
        raise UserError(
            f"dataset={dataset} is not in {local}: download it with `minari download {name}` "
            "(pip install '.[minari]'), or set MINARI_DATASETS_PATH."
        )

    @property
    def environment(self) -> dict[str, Any]:
        """The Gymnasium ID and the arguments of the environment; empty if they are unknown."""
        name, kwargs = self._env_spec.get("id"), self._env_spec.get("kwargs")
        return {"name": name, "kwargs": kwargs or {}} if isinstance(name, str) else {}

    @property
    def reference_returns(self) -> tuple[float, float] | None:
        """The returns of a random and of an expert policy, if they are known."""
        low, high = (self._metadata.get(name) for name in ("ref_min_score", "ref_max_score"))
        is_known = all(isinstance(each, int | float) and np.isfinite(each) for each in (low, high))
        return (float(low), float(high)) if is_known and low < high else None

    def episodes(self) -> Iterator[Episode]:
        """Reads the episodes, in the order of their numbers."""
        try:
            import h5py
        except ImportError as error:
            raise UserError(
                f"{self.folder} is an HDF5 dataset, which needs the package h5py: "
                "pip install '.[minari]'."
            ) from error

        path = self.folder / "main_data.hdf5"
        try:
            with h5py.File(path, "r") as file:
                names = [name for name in file if name.removeprefix(_EPISODE).isdecimal()]
                for name in sorted(names, key=lambda name: int(name.removeprefix(_EPISODE))):
                    yield _read_episode(file[name])
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{path} cannot be read ({first_line(error)}): download the dataset again."
            ) from error


def _read_episode(group: Any) -> Episode:
    arrays = {name: _read_array(group[name]) for name in _PER_STEP}
    observations = dict(_read_tree(group["observations"]))
    steps = len(arrays["rewards"])
    lengths = {name: len(array) for name, array in arrays.items()}
    lengths |= {
        f"observations {key}".strip(): len(array) - 1 for key, array in observations.items()
    }
    for name, length in lengths.items():
        if length != steps:
            raise ValueError(f"{group.name} has {steps} rewards, but {name} for {length} steps")
    return Episode(observations, **arrays)


def _read_tree(entry: Any, *path: str) -> Iterator[tuple[str, np.ndarray]]:
    if not hasattr(entry, "keys"):
        yield ".".join(path), _read_array(entry)
        return
    for name in entry:
        yield from _read_tree(entry[name], *path, name)


def _read_array(entry: Any) -> np.ndarray:
    if getattr(entry, "dtype", np.dtype(object)).kind not in "biuf" or not entry.shape:
        raise TypeError(f"{entry.name} is not a numeric array")
    return entry[()]
