"""The tables of a run: written row by row, truncated by a resumed run, and read."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.run.files import replacing


class Evaluation(NamedTuple):
    """A row of ``eval.csv`` without the step."""

    return_mean: float
    return_std: float
    episode_length: float
    success_rate: float | None

    def __str__(self) -> str:
        rate = "" if self.success_rate is None else f" (success rate {self.success_rate:.2f})"
        return f"{self.return_mean:.1f} ± {self.return_std:.1f}{rate}"


class Table:
    """A CSV file whose state is its size. Loading a state removes later rows and columns.

    An empty table has the columns that are given.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ("step",)) -> None:
        self._path = path
        self._first_columns = list(columns)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row. Missing values are left blank, and new names add a column."""
        before = self._columns()
        columns = list(dict.fromkeys([*(before or self._first_columns), *row]))
        if columns != before:
            return self.rewrite([*self._read(), row], columns)
        with self._path.open("a") as file:
            csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow(row)
            file.flush()
            os.fsync(file.fileno())  # a checkpoint may rely on this row

    def _columns(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open() as file:
            return next(csv.reader(file), [])

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open() as file:
            return list(csv.DictReader(file))

    def rewrite(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Replaces the rows and the columns."""
        with replacing(self._path) as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def state_dict(self) -> dict[str, Any]:
        """The current number of rows, and the columns."""
        rows = self._read()
        return {"rows": len(rows), "columns": list(rows[0]) if rows else []}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises an error if the file lacks some of the saved rows."""
        length = len(self._read())
        if length < state["rows"]:
            raise UserError(
                f"{self._path} is shorter than at the last checkpoint ({counted(length, 'row')}, "
                f"not {state['rows']}): restore a copy of it, or choose another run_dir."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncates the file to the saved rows and columns, after :meth:`check`."""
        columns = state["columns"] or self._first_columns
        rows = self._read()[: state["rows"]]
        self.rewrite([{name: row[name] for name in columns} for row in rows], columns)


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
