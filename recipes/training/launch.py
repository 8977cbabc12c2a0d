"""Starting a recipe: Hydra, and errors in one line."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torchrl import torchrl_logger

from training.errors import UserError, first_line, nearest
from training.lock import LockedError
from training.options import RULES, Config, check, plain
from training.rules import Rules

__all__ = ["program", "recipe"]

_CONFIGS = Path(__file__).parents[2] / "configs"


def recipe(
    name: str, rules: Rules = RULES, check: Callable[[DictConfig], None] = check
) -> Callable[[Callable[[Config], None]], Callable[[], None]]:
    """Makes a program of a function of the configuration.

    The function itself, as one of a composed Hydra configuration, is its ``__wrapped__``.

    Args:
        name: the configuration file, without its ending.
        rules: its keys, and what they may hold.
        check: refuses what the rules cannot know of.
    """

    def decorate(train: Callable[[Config], None]) -> Callable[[], None]:
        def run(cfg: DictConfig) -> None:
            train(plain(cfg))

        started = False  # whether Hydra has understood the command line

        def checked(cfg: DictConfig) -> None:
            nonlocal started
            started = True
            try:  # here, lest Hydra should add lines of its own
                rules.check(cfg)
                if cfg.get("algorithm", name) != name:
                    raise UserError(
                        f"algorithm={cfg.algorithm} belongs to another recipe: leave it out."
                    )
                check(cfg)
                run(cfg)
            except LockedError as error:
                if not _is_sweep():
                    fail(str(error))
                # Sweeps side by side share their work.
                print(f"{error} The sweep goes on without it.", file=sys.stderr)
            except UserError as error:
                which = " ".join(HydraConfig.get().overrides.task)
                fail(f"{error} This run ends the sweep: {which}" if _is_sweep() else str(error))

        # Without it Hydra prints errors in its own way and exits with 1.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        launch = hydra.main(config_path=str(_CONFIGS), config_name=name, version_base="1.3")

        def main() -> None:
            nonlocal started
            started = False
            try:
                launch(checked)()
            except MissingConfigException as error:
                fail(_missing_choice(error))
            except HydraException as error:
                fail(_bad_override(error, rules))
            except ValueError as error:
                if started:
                    raise
                given = " ".join(sys.argv[1:])
                raise UserError(
                    f"{given!r} cannot be understood ({first_line(error)}): write key=value."
                ) from error

        return functools.wraps(run)(program(main))

    return decorate


def program(main: Callable[[], None]) -> Callable[[], None]:
    """Lets mistakes of the user end a program with one line and exit code 2."""

    def run() -> None:
        torchrl_logger.setLevel("WARNING")
        try:
            main()
        except UserError as error:
            fail(str(error))
        except OmegaConfBaseException as error:
            fail(" ".join(str(error).split()))
        except KeyboardInterrupt:
            sys.exit(130)  # of the shell, for SIGINT

    return run


def _is_sweep() -> bool:
    return HydraConfig.get().mode is RunMode.MULTIRUN


def fail(message: str) -> NoReturn:
    """Says what is wrong in one line, and ends the program."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _bad_override(error: Exception, rules: Rules) -> str:
    unknown = re.match(r"Could not override '(.+?)'", str(error))
    if unknown:
        key = unknown.group(1)
        if key in rules.known_keys():
            return f"{key} has no part in this recipe with these choices: leave it out."
        return f"There is no key {key}. Did you mean: {nearest(key, rules.known_keys())}?"
    return " ".join(str(error).split())


def _missing_choice(error: MissingConfigException) -> str:
    group, _, choice = (error.missing_cfg_file or "").partition("/")
    known = [file.stem for file in (_CONFIGS / group).glob("*.yaml")]
    cure = f"Did you mean: {nearest(choice, known)}?"
    if group == "env":
        cure += f" Any other Gymnasium environment: env.name={choice}."
    return f"There is no {group}={choice}. {cure}"
