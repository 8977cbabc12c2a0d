"""The tables and the logger of a run. A resumed run reproduces the tables byte for byte."""

from __future__ import annotations

from pathlib import Path

from torchrl.record.loggers import Logger

from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.evaluation import Evaluation
from vmfer_recipes.run.loggers import make_logger
from vmfer_recipes.run.tables import Table

__all__ = ["RunLog"]

_EVALUATION = ("step", *Evaluation._fields)


class RunLog:
    """The tables of a run, and the logger that mirrors them.

    Args:
        run_dir: the directory of the run.
        cfg: the configuration of the run.
    """

    def __init__(self, run_dir: Path, cfg: TrainingConfig) -> None:
        self.tables = {
            "evaluations": Table(run_dir / "eval.csv", _EVALUATION),
            "training": Table(run_dir / "train.csv"),
        }
        self._run_dir = run_dir
        self._cfg = cfg
        self._logger: Logger | None = None

    def open(self) -> None:
        """Starts the logger."""
        self._logger = make_logger(self._cfg, self._run_dir)

    def clear(self) -> None:
        """Deletes the tables."""
        for table in self.tables.values():
            table.clear()

    def write_evaluation(self, step: int, result: Evaluation) -> None:
        """Writes a row of ``eval.csv``."""
        self.tables["evaluations"].write({"step": step, **result._asdict()})
        known = {name: value for name, value in result._asdict().items() if value is not None}
        self._mirror("eval", known, step)

    def write_random(self, result: Evaluation) -> None:
        """Writes ``random.csv``: an evaluation of the random policy, with the same seeds."""
        table = Table(self._run_dir / "random.csv", _EVALUATION)
        table.clear()
        table.write({"step": 0, **result._asdict()})

    def write_training(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a row of ``train.csv``."""
        self.tables["training"].write({"step": step, **metrics})
        self._mirror("train", metrics, step)

    def _mirror(self, prefix: str, metrics: dict[str, float], step: int) -> None:
        if self._logger is not None:
            self._logger.log_metrics({f"{prefix}/{k}": v for k, v in metrics.items()}, step)

    def close(self) -> None:
        """Closes the logger."""
        if self._logger is not None:
            experiment = self._logger.experiment
            for name in ("finish", "close"):  # W&B, TensorBoard; a custom one may have neither
                if hasattr(experiment, name):
                    getattr(experiment, name)()
                    break
