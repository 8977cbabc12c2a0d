"""The runs that sweeps consist of, from the files that Hydra writes about them."""

from __future__ import annotations

import copy
import functools
import itertools
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.training import options  # noqa: F401  # registers the schemas of the choices
from vmfer_recipes.training.command_line import CONFIGS, choices_of, no_choice
from vmfer_recipes.training.errors import first_line
from vmfer_recipes.training.own_parts import own_choice

__all__ = ["planned_runs"]


def planned_runs(folder: Path) -> tuple[dict[Path, DictConfig], list[str]]:
    """The runs of the sweeps under a folder, by directory, and complaints.

    Hydra writes ``multirun.yaml`` when a sweep starts: the configuration and the grid, with what
    was added on the command line. It names run directories relative to where it was started.
    """
    planned: dict[Path, DictConfig] = {}
    complaints = []
    for file in sorted(folder.rglob("multirun.yaml")):
        try:
            noted = OmegaConf.load(file)
            assert isinstance(noted, DictConfig)
            start = _start(file, noted.hydra)
            for cfg in _grid(noted):
                planned.setdefault(start / cfg.run_dir, cfg)
        except Exception as error:
            complaints.append(f"{file} cannot be read ({first_line(error)}).")
    return planned, complaints


def _start(file: Path, hydra: DictConfig) -> Path:
    """Where a sweep was started, or where its files were moved to since."""
    notes, place = Path(hydra.sweep.dir), file.parent.resolve()
    depth = len(notes.parts)
    if place.parts[-depth:] == notes.parts and not notes.is_absolute():
        return place.parents[depth - 1]
    return Path(hydra.runtime.cwd)


def _grid(noted: DictConfig) -> list[DictConfig]:
    hydra, config = noted.hydra, copy.copy(noted)
    config.pop("hydra")
    sweep = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    choices: dict[str, list[str]] = {}
    # As it was written: what refers to other keys is different for each run.
    given: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    # The command line comes last and replaces what the experiment says.
    for override in OverridesParser.create().parse_overrides([*sweep, *given]):
        key = override.get_key_element().lstrip("+")
        if override.is_sweep_override():
            choices[key] = list(override.sweep_string_iterator())
        elif key != "experiment":
            choices[key] = [(override.input_line or "").partition("=")[2]]
    # Groups first: a choice brings keys that others may then set.
    keys = sorted(choices, key=lambda key: not (CONFIGS / key).is_dir())
    return [
        _with(config, dict(zip(keys, values, strict=True)))
        for values in itertools.product(*(choices[key] for key in keys))
    ]


def _with(config: DictConfig, values: dict[str, str]) -> DictConfig:
    """A configuration with other values. (Hydra's ``compose`` takes a hundred times as long.)"""
    config = copy.deepcopy(config)
    for key, value in values.items():
        if (CONFIGS / key).is_dir():
            config[key] = _choice(key, value)
        else:
            OmegaConf.update(config, key, _parsed(value), force_add=True)
    return config


@functools.cache
def _choice(group: str, name: str) -> Any:
    own = own_choice(group, name)
    if own is not None:
        return own.as_dict()
    if name not in choices_of(group):  # compose() would also follow a path out of the package
        raise no_choice(group, name, choices_of(group))
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = compose(f"{group}/{name}")
    return OmegaConf.to_container(composed[group], resolve=False)


@functools.cache
def _parsed(value: str) -> Any:
    parsed: Any = OmegaConf.to_container(OmegaConf.create(f"value: {value}"), resolve=False)
    return parsed["value"]
