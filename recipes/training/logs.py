"""The tables and the logger of a run. A resumed run reproduces the tables byte for byte."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.record.loggers import Logger

from torchrl_vmfer import VMFUncertainty
from vmfer_recipes.training.errors import UserError, counted
from vmfer_recipes.training.evaluation import Evaluation
from vmfer_recipes.training.files import replacing
from vmfer_recipes.training.loggers import make_logger
from vmfer_recipes.training.options import Config

__all__ = ["RunLog", "Table", "agreement"]

_EVALUATION = ("step", *Evaluation._fields)


class Table:
    """A CSV file whose state is its size. Loading a state removes later rows and columns.

    Args:
        path: the file.
        columns: the first columns; an empty table has these.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ("step",)) -> None:
        self._path = path
        self._columns = list(columns)

    def clear(self) -> None:
        """Removes all rows."""
        self._rewrite([], self._columns)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row. Missing values are left blank, and new names add a column."""
        rows = self._read()
        columns = list(dict.fromkeys([*(rows[0] if rows else self._columns), *row]))
        if rows and columns == list(rows[0]):
            with self._path.open("a") as file:
                csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow(row)
                file.flush()
                os.fsync(file.fileno())  # a checkpoint may rely on this row
        else:
            self._rewrite([*rows, row], columns)

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open() as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: Sequence[Mapping[str, Any]], columns: list[str]) -> None:
        with replacing(self._path) as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def state_dict(self) -> dict[str, Any]:
        """The current number of rows, and the columns."""
        rows = self._read()
        return {"rows": len(rows), "columns": list(rows[0]) if rows else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncates the file to the saved rows and columns."""
        rows = self._read()
        if len(rows) < state["rows"]:
            raise UserError(
                f"{self._path} is shorter than at the last checkpoint "
                f"({counted(len(rows), 'row')}, not {state['rows']}): it was changed by "
                "hand. Choose another run_dir."
            )
        if state["rows"]:
            columns = state["columns"]
            self._rewrite(
                [{name: row[name] for name in columns} for row in rows[: state["rows"]]], columns
            )
        else:
            self.clear()


class RunLog:
    """The tables of a run, and the logger that mirrors them.

    Args:
        run_dir: the directory of the run.
        cfg: the configuration of the run.
    """

    def __init__(self, run_dir: Path, cfg: Config) -> None:
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
            for name in ("finish", "close"):  # of W&B and TensorBoard; an own one may have none
                if hasattr(experiment, name):
                    getattr(experiment, name)()
                    break


def agreement(
    info: dict[str, Tensor], uncertainty: VMFUncertainty, batch: TensorDictBase
) -> dict[str, Tensor]:
    """The mean and quantiles of the factor and the resultant length over an actor batch.

    Args:
        info: the metadata of the actor loss, which contain both if the loss measures them.
        uncertainty: computes them otherwise.
        batch: the batch.
    """
    if "vmf_factor" not in info:
        with torch.random.fork_rng():  # logging must not affect the random numbers of training
            measured = uncertainty(batch.select("observation"))["vmf"]
        info = {f"vmf_{name}": value for name, value in measured.items()}
    statistics = {}
    for name in ("factor", "resultant_length"):
        values = info[f"vmf_{name}"].sort().values
        statistics[f"{name}_mean"] = values.mean()
        for percent in (10, 50, 90):
            statistics[f"{name}_q{percent}"] = values[(len(values) - 1) * percent // 100]
    return statistics
