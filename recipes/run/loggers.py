"""The loggers of ``logger=``, which mirror the tables of a run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import (
    LoggerConfig,
    OwnLoggerConfig,
    TensorBoardLoggerConfig,
    WandbLoggerConfig,
)
from vmfer_recipes.config.names import flat, folder_name, group_name, run_name
from vmfer_recipes.config.plugins import import_class
from vmfer_recipes.run.files import replacing

if TYPE_CHECKING:
    from vmfer_recipes.config.training import TrainingConfig  # which checks loggers

__all__ = ["check_logger", "make_logger"]

_SECONDS = 60  # to reach Weights & Biases; afterwards an interrupted connection is no error


def check_logger(cfg: LoggerConfig) -> None:
    """Raises an error if a logger is not installed, or is not logged in."""
    if cfg.kind not in ("tensorboard", "wandb"):
        return
    if not _is_installed(cfg.kind):  # each logger has the name of its package
        raise UserError(
            f"logger={cfg.kind} needs a package that is not installed: "
            f"`pip install {cfg.kind}`, or use logger=csv."
        )
    if isinstance(cfg, WandbLoggerConfig) and not cfg.offline and not os.environ.get("WANDB_MODE"):
        wandb = importlib.import_module("wandb")
        if not wandb.login(prompt=False, verify=False):  # otherwise it would ask for a key and wait
            raise UserError(
                "logger=wandb is not logged in: run `wandb login` or set WANDB_API_KEY, or use "
                "logger.offline=true or logger=csv."
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # excluded by `sys.modules[package] = None`
        return False


def make_logger(cfg: TrainingConfig, run_dir: Path) -> Any:
    """TorchRL's logger of a run, with all hyperparameters; ``None`` for ``logger=csv``."""
    if isinstance(cfg.logger, TensorBoardLoggerConfig):
        return _tensorboard(cfg, run_dir)
    if isinstance(cfg.logger, WandbLoggerConfig):
        return _wandb(cfg, cfg.logger, run_dir)
    return _own(cfg, cfg.logger, run_dir) if isinstance(cfg.logger, OwnLoggerConfig) else None


def _tensorboard(cfg: TrainingConfig, run_dir: Path) -> Any:
    from torch.utils.tensorboard.summary import hparams
    from torchrl.record.loggers import TensorboardLogger

    logger = TensorboardLogger(folder_name(run_name(cfg)), str(run_dir))
    settings = flat(cfg.as_dict())
    # As TorchRL's `log_hparams`, which writes them to a second run beside this one.
    numbers = {
        key: value if isinstance(value, (bool, int, float, str)) else str(value)
        for key, value in settings.items()
    }
    for summary in hparams(numbers, {"eval/return_mean": 0}):
        logger.experiment.file_writer.add_summary(summary)
    rows = [f"| {key} | {value} |" for key, value in settings.items()]
    table = "\n".join(["| key | value |", "|---|---|", *rows])
    logger.experiment.add_text("hyper-parameters", table, 0)
    return logger


def _wandb(cfg: TrainingConfig, options: WandbLoggerConfig, run_dir: Path) -> Any:
    import wandb
    from torchrl.record.loggers import WandbLogger

    try:
        logger = WandbLogger(
            run_name(cfg),
            offline=options.offline,
            save_dir=str(run_dir),
            id=_saved_id(run_dir / "wandb_id"),
            project=options.project,
            group=group_name(cfg),
            tags=[cfg.algorithm, cfg.env.name, cfg.replay.name, cfg.sampler.name],
            config=flat(cfg.as_dict()),
            settings=wandb.Settings(init_timeout=_SECONDS),
            log_env_packages=False,
        )
    except wandb.errors.Error as error:
        raise UserError(
            f"Weights & Biases cannot be used ({first_line(error)}): use logger.offline=true and "
            "`wandb sync` later, or logger=csv."
        ) from error
    return logger


def _saved_id(file: Path) -> str:
    """The id of the run at Weights & Biases, so that a resumed run continues the same one."""
    if not file.exists():
        with replacing(file) as new:
            new.write(uuid.uuid4().hex[:8])
    return file.read_text().strip()


def _own(cfg: TrainingConfig, options: OwnLoggerConfig, run_dir: Path) -> Any:
    from torchrl.record.loggers import Logger

    kind = import_class(options.path, Logger, "logger")
    try:
        logger = kind(run_name(cfg), str(run_dir))
    except Exception as error:
        raise UserError(
            f"logger={options.path} cannot be created ({type(error).__name__}: "
            f"{first_line(error)})."
        ) from error
    logger.log_hparams(flat(cfg.as_dict()))
    return logger
