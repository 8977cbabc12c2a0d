"""The tables of a run: written row by row, truncated by a resumed run, and read."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.run.files import replacing
from vmfer_recipes.run.loggers import make_logger

if TYPE_CHECKING:
    from torchrl.record.loggers import Logger

    from vmfer_recipes.config.training import TrainingConfig

__all__ = ["Evaluation", "RunLog", "Table", "aligned", "read_columns"]


class Evaluation(NamedTuple):
    """A row of ``eval.csv`` without the step."""

    return_mean: float
    return_std: float
    episode_length: float
    success_rate: float | None


_EVALUATION = ("step", *Evaluation._fields)


class Table:
    """A CSV file whose state is its size. Loading a state removes later rows and columns.

    An empty table has the columns that are given.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ("step",)) -> None:
        self._path = path
        self._first_columns = list(columns)
        # What is in the file, which is read only if something else changed its size.
        self._columns: list[str] = []
        self._length = 0
        self._size = -1

    def clear(self) -> None:
        """Removes all rows."""
        self._rewrite([], self._first_columns)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row. Missing values are left blank, and new names add a column."""
        self._look()
        columns = list(dict.fromkeys([*(self._columns or self._first_columns), *row]))
        if columns == self._columns:
            with self._path.open("a") as file:
                csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow(row)
                file.flush()
                os.fsync(file.fileno())  # a checkpoint may rely on this row
            self._remember(self._length + 1, columns)
        else:
            self._rewrite([*self._read(), row], columns)

    def _look(self) -> None:
        """Reads length and columns again if the file was changed."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size != self._size:
            rows = self._read()
            self._remember(len(rows), list(rows[0]) if rows else [])

    def _remember(self, length: int, columns: list[str]) -> None:
        self._length, self._columns = length, columns if length else []
        self._size = self._path.stat().st_size if self._path.exists() else 0

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
        self._remember(len(rows), columns)

    def state_dict(self) -> dict[str, Any]:
        """The current number of rows, and the columns."""
        self._look()
        return {"rows": self._length, "columns": list(self._columns)}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises an error if the file lacks some of the saved rows."""
        length = len(self._read())
        if length < state["rows"]:
            raise UserError(
                f"{self._path} is shorter than at the last checkpoint ({counted(length, 'row')}, "
                f"not {state['rows']}): restore a copy of it, or choose another run_dir."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncates the file to the saved rows and columns."""
        self.check(state)
        if state["rows"]:
            columns = state["columns"]
            rows = self._read()[: state["rows"]]
            self._rewrite([{name: row[name] for name in columns} for row in rows], columns)
        else:
            self.clear()


class RunLog:
    """The tables of a run, and the logger that mirrors them."""

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


def read_columns(file: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file of numbers; blanks are NaN."""
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, None)
        if not header:
            raise ValueError(f"{file.name} is empty")
        rows = []
        for number, row in enumerate(reader, start=2):
            if len(row) != len(header):
                raise ValueError(
                    f"{file.name} has {len(row)} values in line {number}, not {len(header)}"
                )
            try:
                rows.append([float(value) if value else math.nan for value in row])
            except ValueError as error:
                raise ValueError(f"{file.name}, line {number}: {first_line(error)}") from error
    values = np.array(rows, dtype=float).reshape(len(rows), len(header))
    return {name: values[:, i] for i, name in enumerate(header)}


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A table for the terminal, whose first ``left`` columns are aligned on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*map(str.ljust, row[:left], widths), *map(str.rjust, row[left:], widths[left:])])
        for row in rows
    ]
