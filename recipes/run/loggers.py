"""The loggers of ``logger=``, which mirror the tables of a run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import LoggerConfig, TensorBoardLoggerConfig, WandbLoggerConfig
from vmfer_recipes.config.names import flat, folder_name, group_name
from vmfer_recipes.config.plugins import instantiate
from vmfer_recipes.run.files import replacing

if TYPE_CHECKING:
    from vmfer_recipes.config.training import TrainingConfig  # it imports this module

_PACKAGES = {TensorBoardLoggerConfig: "tensorboard", WandbLoggerConfig: "wandb"}
_SECONDS = 60  # to reach Weights & Biases; afterwards an interrupted connection is no error


def check_logger(cfg: LoggerConfig) -> None:
    """Raises an error if a logger is not installed, or is not logged in."""
    package = _PACKAGES.get(type(cfg))
    if package is None:
        return
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"logger={package} needs a package that is not installed: "
            f"`pip install {package}`, or use logger=csv."
        )
    if isinstance(cfg, WandbLoggerConfig) and not cfg.offline and not os.environ.get("WANDB_MODE"):
        wandb = importlib.import_module("wandb")
        if not wandb.login(prompt=False, verify=False):  # otherwise it would ask for a key and wait
            raise UserError(
                "logger=wandb is not logged in: run `wandb login` or set WANDB_API_KEY, or use "
                "logger.offline=true or logger=csv."
            )


def make_logger(cfg: TrainingConfig, run_dir: Path) -> Any:
    """The logger of a run, in addition to its CSV files; ``None`` for ``logger=csv``."""
    if cfg.logger._target_ is None:
        return None
    from torchrl.record.loggers import Logger

    folder, name, settings = str(run_dir), f"{group_name(cfg)}-seed{cfg.seed}", flat(cfg.as_dict())
    if isinstance(cfg.logger, WandbLoggerConfig):
        try:
            options = {"save_dir": folder, "config": settings, **_wandb_options(cfg, run_dir)}
            return instantiate(cfg.logger, Logger, "logger", exp_name=name, **options)
        except UserError as error:
            cure = "Use logger.offline=true and `wandb sync` later, or logger=csv."
            raise UserError(f"{error} {cure}") from error
    if isinstance(cfg.logger, TensorBoardLoggerConfig):
        logger = instantiate(cfg.logger, Logger, "logger", folder_name(name), folder)
        _log_to_tensorboard(logger, settings)
    else:
        logger = instantiate(cfg.logger, Logger, "logger", name, folder)
        logger.log_hparams(settings)
    return logger


def _log_to_tensorboard(logger: Any, settings: dict[str, Any]) -> None:
    from torch.utils.tensorboard.summary import hparams

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


def _wandb_options(cfg: TrainingConfig, run_dir: Path) -> dict[str, Any]:
    import wandb

    saved_id = run_dir / "wandb_id"  # so that a resumed run continues its W&B run
    if not saved_id.exists():
        with replacing(saved_id) as new:
            new.write(uuid.uuid4().hex[:8])
    return {
        "id": saved_id.read_text().strip(),
        "group": group_name(cfg),
        "tags": [cfg.algorithm, cfg.env.name, cfg.replay.name, cfg.sampler.name],
        "settings": wandb.Settings(init_timeout=_SECONDS),
        "log_env_packages": False,
    }
