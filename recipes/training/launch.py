"""Starting a recipe: Hydra, and errors in one line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torchrl import torchrl_logger

from training.errors import UserError, nearest

__all__ = ["check", "program", "recipe"]

_CONFIGS = Path(__file__).parents[2] / "configs"


def recipe(name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Makes a program of a function of the configuration.

    Args:
        name: the configuration file, without its ending.
    """

    def decorate(train: Callable[[DictConfig], None]) -> Callable[[], None]:
        def checked(cfg: DictConfig) -> None:
            try:
                check(cfg)
                train(cfg)
            except UserError as error:  # here, lest Hydra should add a line of its own
                fail(str(error))

        # Without it Hydra prints errors in its own way and exits with 1.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        launch = hydra.main(config_path=str(_CONFIGS), config_name=name, version_base="1.3")
        return functools.wraps(train)(program(launch(checked)))

    return decorate


def program(main: Callable[[], None]) -> Callable[[], None]:
    """Lets mistakes of the user end a program with one line and exit code 2."""

    def run() -> None:
        torchrl_logger.setLevel("WARNING")
        try:
            main()
        except UserError as error:
            fail(str(error))
        except MissingConfigException as error:
            fail(_missing_choice(error))
        except (HydraException, OmegaConfBaseException) as error:
            fail(" ".join(str(error).split()))

    return run


def fail(message: str) -> None:
    """Says what is wrong in one line, and ends the program."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _missing_choice(error: MissingConfigException) -> str:
    group, _, choice = (error.missing_cfg_file or "").partition("/")
    known = [file.stem for file in (_CONFIGS / group).glob("*.yaml")]
    cure = f"Did you mean: {nearest(choice, known)}?"
    if group == "env":
        cure += f" Any other Gymnasium environment: env.name={choice}."
    return f"There is no {group}={choice}. {cure}"


def check(cfg: DictConfig) -> None:
    """Refuses values that cannot work, before anything is made or written."""
    for key in (
        "total_frames",
        "utd_ratio",
        "num_critics",
        "batch_size",
        "eval_interval",
        "num_eval_episodes",
        "log_interval",
        "checkpoint_interval",
        "threads",
    ):
        if not isinstance(cfg[key], int) or cfg[key] < 1:
            raise UserError(f"{key} must be a whole number of at least 1, got {cfg[key]!r}.")
    if cfg.total_frames <= cfg.init_random_frames:
        raise UserError(
            f"total_frames={cfg.total_frames} leaves nothing to learn after "
            f"init_random_frames={cfg.init_random_frames}: raise the first or lower the second."
        )
    if cfg.sampler.kind == "vmf" and cfg.num_critics < 2:
        raise UserError(
            f"sampler={cfg.sampler.name} needs critics that can disagree, got num_critics=1: "
            "use at least 2, or sampler=uniform."
        )
