"""The entry point of recipes: Hydra, sweeps and one-line errors."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from vmfer_recipes import end_start, stopping_while_starting
from vmfer_recipes.config._hydra import register_plugins
from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.command_line import answer_help, read_command_line
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import Config
from vmfer_recipes.config.names import CONFIGS
from vmfer_recipes.config.plugins import import_module, register_recipe
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import composed, explaining, to_config
from vmfer_recipes.environments.names import registered_id
from vmfer_recipes.run.files import LockedError
from vmfer_recipes.run.interruption import (
    Interruption,
    StoppedError,
    leaving_ctrl_c_to_the_runs,
)

_USER_ERRORS = (UserError, OmegaConfBaseException)


def recipe(name: str, config: type[Config]) -> Callable[[Callable[[Any], None]], Recipe]:
    """Turns a function of the configuration into a program; ``__wrapped__`` is the function.

    The file of the function gives the recipe its name: a copy of ``td3.py`` with another name
    writes other run directories. ``name`` is the configuration file whose choices it starts from,
    without its ending.

    Example:
        >>> from vmfer_recipes.config.algorithms import TD3Config
        >>> @recipe("td3", TD3Config)
        ... def main(cfg: TD3Config) -> None:
        ...     print(cfg.policy_delay)
        >>> main.__wrapped__(TD3Config())
        2
    """

    def decorate(run: Callable[[Any], None]) -> Recipe:
        file = Path(inspect.unwrap(run).__code__.co_filename)
        script = file.parent.name if file.stem == "__init__" else file.stem
        return Recipe(name, config, run, script if file.is_file() else name)

    return decorate


class Recipe:
    """A program that reads the command line and executes the requested runs.

    It is made by :func:`recipe`. ``algorithm`` is its name in run directories.
    """

    def __init__(
        self, name: str, config: type[Config], run: Callable[[Any], None], algorithm: str
    ) -> None:
        functools.update_wrapper(self, run)
        self.config = config
        self._file = name
        self._name = register_recipe(name, config, algorithm)
        self._program = f"python {'recipes/' if self._name == name else ''}{algorithm}.py"
        self._run = run

    def __call__(self, program_name: str | None = None) -> None:
        """Runs the program. User errors end it with a one-line message and exit code 2."""
        self._program = program_name or self._program
        program(self._main)()

    def compose(self, arguments: list[str]) -> Any:
        """The validated configuration of the run that a command line starts."""
        overrides, _ = read_command_line(arguments, self.config)
        return to_config(composed(self._name, overrides, self.config))

    def _main(self) -> None:
        answer_help(sys.argv[1:], self._program, self.config, self._file)
        overrides, options = read_command_line(sys.argv[1:], self.config)
        if options:
            self._launch(overrides, options)
        else:
            self._execute(to_config(composed(self._name, overrides, self.config)))

    def _execute(self, config: Any) -> None:
        # Modules of the user may import anything: they wait for the run.
        is_named = isinstance(config, TrainingConfig) and ":" not in config.env.name
        if is_named and config.env.backend == "gymnasium":
            registered_id(config.env.name)
        quiet_torchrl()
        self._run(config)

    def _launch(self, overrides: list[str], options: dict[str, Any]) -> None:
        """Lets Hydra print what an option asks for, or start the runs of a sweep."""
        words = (
            f"--{name.replace('_', '-')}{'' if value is True else f'={value}'}"
            for name, value in options.items()
        )
        sys.argv[1:] = [*overrides, *words]  # the order that Hydra's parser accepts
        os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra formats errors itself and exits
        if "multirun" in options:  # options such as --info are faster without these imports
            from vmfer_recipes.population.launcher import PopulationLauncher
            from vmfer_recipes.sweep.sweeps import GridSweeper

            register_plugins(GridSweeper, PopulationLauncher)
        main = hydra.main(config_path=str(CONFIGS), config_name=self._name, version_base="1.3")
        has_workers = "hydra/launcher=joblib" in overrides
        try:
            with (
                explaining(self.config),
                leaving_ctrl_c_to_the_runs() if has_workers else nullcontext(),
            ):
                main(self._job)()
        except StoppedError:
            print("The sweep was stopped. The same command resumes it.", file=sys.stderr)
            sys.exit(130)

    def _job(self, cfg: DictConfig) -> None:
        """Executes one run of a sweep, in this process or in a worker."""
        job = HydraConfig.get()
        of_joblib = job.runtime.choices["hydra/launcher"] == "joblib"
        if of_joblib and Interruption.came:
            raise StoppedError
        os.chdir(job.runtime.cwd)  # a worker on a cluster may have started elsewhere
        try:
            self._execute(to_config(cfg))
        except SystemExit:
            if of_joblib:
                raise StoppedError from None
            raise
        except LockedError as error:  # several sweeps can share their work
            print(f"{error} The sweep continues without it.", file=sys.stderr)
        except Exception as error:
            # The error is printed immediately, because a sweep takes a long time. The exception
            # raised here reaches the process that started the sweep, which reports the first one
            # after all runs have ended.
            if isinstance(error, _USER_ERRORS):
                _print_error(str(error))
            else:
                traceback.print_exception(error)
            run = " ".join(job.overrides.task)
            raise UserError(
                f"{run} failed ({first_line(error)}). The other runs have ended; run the same "
                "command to complete the sweep."
            ) from None


def program(main: Callable[[], None]) -> Callable[[], None]:
    """Wraps a program so that user errors end it with a one-line message and exit code 2."""

    @functools.wraps(main)
    def run() -> None:
        try:
            end_start()
            main()
            sys.stdout.flush()
        except _USER_ERRORS as error:
            _print_error(str(error))
            sys.exit(2)
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(141)  # the exit code of shells for SIGPIPE
        except KeyboardInterrupt:
            sys.exit(130)  # the exit code of shells for SIGINT

    return run


def load_recipe(name: str) -> Recipe:
    """The recipe with the given name: that of an algorithm of this package, or of a module."""
    known = ", ".join(algorithms())
    if not name or "=" in name or name.startswith("-"):
        raise UserError(
            f"The algorithm comes first, such as `{f'vmfer-train td3 {name}'.strip()}`: use "
            f"{known} or my_package.my_algorithm."
        )
    if name.endswith(".py"):
        module = ".".join(part for part in name[:-3].split("/") if part not in ("", ".", ".."))
        raise UserError(
            f"{name} is a file, not a module: write {module}, or run it with `python {name}`."
        )
    try:
        module = f"vmfer_recipes.{name}" if name in algorithms() else name
        found = getattr(import_module(module, name), "main", None)
    except UserError as error:
        raise UserError(f"{error} Algorithms of this package: {known}.") from error
    if not isinstance(found, Recipe):
        raise UserError(
            f"The module {name} has no recipe: define `main(cfg)` in it and decorate it with "
            "@recipe, as vmfer_recipes/td3.py does."
        )
    return found


@program
def train() -> None:
    """Runs the recipe that the first argument names: the command ``vmfer-train``."""
    if {*sys.argv[1:2]} & {"--help", "-h"}:
        print("Usage: vmfer-train <algorithm> [group=choice ...] [key=value ...] [-m]\n")
        print("Algorithms:")
        for name, config in algorithms().items():
            print(f"  {name:<24} {(config.__doc__ or '').splitlines()[0]}")
        print(f"  {'my_package.my_algorithm':<24} A custom module with a @recipe `main`.\n")
        print("Its keys: vmfer-train <algorithm> --help")
        return
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    del sys.argv[1:2]
    load_recipe(name)(f"vmfer-train {name}")


def _print_error(message: str) -> None:
    """Prints an error in one line."""
    print("error:", *message.split(), file=sys.stderr)


def quiet_torchrl() -> None:
    """Hides TorchRL's messages below the level of warnings."""
    with stopping_while_starting():  # imported here, so that --help stays fast
        from torchrl import torchrl_logger

    torchrl_logger.setLevel("WARNING")
