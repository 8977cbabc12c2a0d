"""Starting a recipe: Hydra, and errors in one line."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torchrl import torchrl_logger

from vmfer_recipes.training.errors import UserError, first_line, nearest
from vmfer_recipes.training.interruption import (
    Interruption,
    StoppedError,
    leaving_ctrl_c_to_the_runs,
)
from vmfer_recipes.training.lock import LockedError
from vmfer_recipes.training.options import RULES, Config, check, plain
from vmfer_recipes.training.rules import Rules

__all__ = ["program", "recipe"]

_CONFIGS = Path(str(files("vmfer_recipes.configs")))
_MULTIRUN = ("-m", "--multirun")
# The extra that brings a choice of `hydra/launcher=`.
_LAUNCHERS = {"joblib": "sweep", "ray": "ray", "submitit_slurm": "slurm"}


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

        started = False  # whether the command line has been understood

        def checked(cfg: DictConfig) -> None:
            nonlocal started
            job = HydraConfig.get()
            of_joblib = "joblib" in job.launcher._target_ and job.mode == RunMode.MULTIRUN
            if of_joblib and Interruption.came:
                raise StoppedError
            os.chdir(job.runtime.cwd)  # where a worker of a cluster need not have been started
            try:
                rules.check(cfg)
                started = True
                if cfg.get("algorithm", name) != name:
                    raise UserError(
                        f"algorithm={cfg.algorithm} belongs to another recipe: leave it out."
                    )
                check(cfg)
                run(cfg)
            except Exception as error:
                if job.mode == RunMode.MULTIRUN:
                    _give_up(" ".join(job.overrides.task), error)
                elif isinstance(error, (UserError, OmegaConfBaseException)):
                    fail(str(error))  # here, lest Hydra should add lines of its own
                else:
                    raise
            except SystemExit:
                if of_joblib:
                    raise StoppedError from None
                raise

        launch = hydra.main(config_path=str(_CONFIGS), config_name=name, version_base="1.3")

        def main() -> None:
            nonlocal started
            started = False
            # Without it Hydra prints errors in its own way and exits with 1.
            os.environ["HYDRA_FULL_ERROR"] = "1"
            for argument in sys.argv[1:]:
                if argument.startswith("~"):
                    raise UserError(f"{argument} takes away what is needed: leave it out.")
            # Hydra wants it before or behind all others.
            sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in _MULTIRUN)
            is_sweep = any(word in _MULTIRUN for word in sys.argv[1:])
            has_workers = is_sweep and "hydra/launcher=joblib" in sys.argv
            try:
                with leaving_ctrl_c_to_the_runs() if has_workers else nullcontext():
                    launch(checked)()
            except StoppedError:
                print("The sweep was stopped. The same command goes on.", file=sys.stderr)
                sys.exit(130)
            except MissingConfigException as error:
                fail(_missing_choice(error))
            except HydraException as error:
                fail(_bad_override(error, rules))
            except (ValueError, RecursionError) as error:
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
        except (UserError, OmegaConfBaseException) as error:
            fail(str(error))
        except KeyboardInterrupt:
            sys.exit(130)  # of the shell, for SIGINT

    return run


def fail(message: str) -> NoReturn:
    """Says what is wrong in one line, and ends the program."""
    print("error:", *message.split(), file=sys.stderr)
    sys.exit(2)


def _give_up(run: str, error: Exception) -> None:
    """Ends one run of a sweep, and lets the others go on.

    The run says at once what is wrong, for a sweep takes long. What is raised comes back to the
    process that started the sweep, which repeats the first of it when all runs have ended.
    """
    if isinstance(error, LockedError):  # sweeps side by side share their work
        print(f"{error} The sweep goes on without it.", file=sys.stderr)
        return
    if isinstance(error, (UserError, OmegaConfBaseException)):
        print("error:", *str(error).split(), file=sys.stderr)
    else:
        traceback.print_exception(error)
    raise UserError(
        f"{run} failed ({first_line(error)}). The others have ended; start again for what is left."
    )


def _bad_override(error: Exception, rules: Rules) -> str:
    unknown = re.match(r"Could not override '(.+?)'", str(error))
    if unknown:
        key = unknown.group(1)
        if key in rules.known_keys():
            return f"{key} has no part in this recipe with these choices: leave it out."
        return f"There is no key {key}. Did you mean: {nearest(key, rules.known_keys())}?"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} cannot be understood: write key=value, and put a value with "
            "special characters in quotes of its own, as in \"key='a b'\"."
        )
    return str(error)


def _missing_choice(error: MissingConfigException) -> str:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if group == "hydra/launcher" and choice in _LAUNCHERS:
        return f"{group}={choice} needs a package more: pip install '.[{_LAUNCHERS[choice]}]'."
    known = [file.stem for file in (_CONFIGS / group).glob("*.yaml")]
    if group == "hydra/launcher":
        known += _LAUNCHERS
    cure = f"Did you mean: {nearest(choice, known)}?"
    if group == "env":
        cure += f" Any other Gymnasium environment: env.name={choice}."
    return f"There is no {group}={choice}. {cure}"
