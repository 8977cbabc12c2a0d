"""Parts from modules of the user: choices by import path, and recipes with additional keys.

Hydra composes configurations from files. Custom parts have no files, so their configurations
are registered here before Hydra starts. Their classes are imported when a run needs them.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hydra.utils
from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from torchrl_vmfer import imports
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import CustomLoggerConfig, CustomReplayConfig, CustomSamplerConfig
from vmfer_recipes.config.keys import Config, PartConfig, describe, schemas_of
from vmfer_recipes.config.names import CONFIGS


def is_custom(part: Config) -> bool:
    """Whether a choice of a group is a class of the user."""
    return isinstance(part, (CustomSamplerConfig, CustomReplayConfig, CustomLoggerConfig))


def register_choice(group: str, choice: str) -> None:
    """Registers the configuration of a choice by import path; other choices have files."""
    schemas, words = schemas_of(group), choice.split(".")
    if "custom" in schemas and len(words) > 1 and all(map(str.isidentifier, words)):
        named = {} if group == "logger" else {"name": words[-1]}
        config: Any = schemas["custom"]
        ConfigStore.instance().store(choice, config(_target_=choice, **named), group=group)


def register_recipe(base: str, config: type[Config], algorithm: str) -> str:
    """Registers the configuration of a recipe, unless it is one of this package."""
    file = CONFIGS / f"{base}.yaml"
    if (algorithm == base and schemas_of().get(base) is config) or not file.exists():
        return base
    name, store = f"custom_{algorithm}", ConfigStore.instance()
    store.store(name, config, group="schema")
    content: Any = OmegaConf.to_container(OmegaConf.load(file))
    defaults = content["defaults"]
    defaults[defaults.index(f"schema/{base}@_here_")] = f"schema/{name}@_here_"
    if "algorithm" in {key.name for key in describe(config)}:
        content["algorithm"] = algorithm
    store.store(name, content)
    return name


_Base = TypeVar("_Base")


def import_class(path: str, base: type[_Base], key: str) -> type[_Base]:
    """Imports a class such as ``my_package.MySampler``."""
    with importing():
        return imports.import_class(path, base, f"{key}={path}")


def instantiate(
    part: PartConfig, base: type[_Base], group: str, /, *first: Any, **further: Any
) -> _Base:
    """Creates the object of a ``_target_``, whether the class is one of this package or not.

    Its class must be derived from ``base``. Arguments after the group are not in the configuration.
    """
    path, arguments = str(part._target_), part.arguments
    checked = {"_target_": import_class(path, base, group), **arguments, **further}
    try:
        # A value that names another target is passed as it is, not called.
        made: _Base = hydra.utils.instantiate(checked, *first, _recursive_=False, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        choice = path if is_custom(part) else getattr(part, "name", path)
        raise UserError(
            f"{group}={choice} could not be created with {arguments} "
            f"({type(cause).__name__}: {first_line(cause)})."
        ) from error
    return made


def import_module(name: str, setting: str) -> ModuleType:
    """Imports a module that is installed or lies in the current directory."""
    with importing():
        return imports.import_module(name, setting)


@contextmanager
def importing() -> Iterator[None]:
    """A context in which modules of the current directory are found and errors take one line."""
    here, scripts = os.getcwd(), os.path.realpath(str(files("vmfer_recipes")))
    # A script is started with its own directory, whose folders would hide modules of the same name.
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or here) != scripts]
    if here not in sys.path:
        sys.path.append(here)
    try:
        yield
    except (ImportError, ValueError) as error:  # the latter from networks
        raise UserError(str(error)) from error


def copy_code(folder: Path) -> None:
    """Copies this package and the user's imported modules, for machines that do not have them."""
    standard = sysconfig.get_path("stdlib")
    for name, module in list(sys.modules.items()):
        source = Path(getattr(module, "__file__", None) or standard)
        is_installed = (
            source.is_relative_to(standard)
            or "site-packages" in source.parts
            or "dist-packages" in source.parts
        )
        if "." in name or name == "__main__":
            continue
        if is_installed and name not in ("torchrl_vmfer", "vmfer_recipes"):
            continue
        if source.name == "__init__.py":
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(source.parent, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder)
