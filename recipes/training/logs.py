"""Tables that a resumed run continues to the byte, and the loggers that mirror them."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torchrl.record.loggers import Logger, get_logger

from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.files import replacing
from vmfer_recipes.training.options import Config

__all__ = ["Averages", "Table", "check_logger", "make_logger"]


class Table:
    """A CSV file. Its state is its number of rows: what was written beyond it is cut off.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear(self) -> None:
        """Starts anew."""
        self._path.unlink(missing_ok=True)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row. What it lacks is left blank, and what is new gets a column."""
        rows = self._read()
        columns = list(dict.fromkeys([*(rows[0] if rows else ()), *row]))
        if rows and columns == list(rows[0]):
            with self._path.open("a") as file:
                csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow(row)
                file.flush()
                os.fsync(file.fileno())  # a checkpoint may count it
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

    def state_dict(self) -> dict[str, int]:
        """The present number of rows."""
        return {"rows": len(self._read())}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Cuts the file to the rows that it had."""
        rows = self._read()
        if len(rows) < state["rows"]:
            raise UserError(
                f"{self._path} is shorter than at the last checkpoint ({len(rows)} rows, not "
                f"{state['rows']}): it was changed by hand. Choose another run_dir."
            )
        if state["rows"]:
            self._rewrite(rows[: state["rows"]], list(rows[0]))
        else:
            self.clear()


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds a value of each."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value.detach())

    def means(self) -> dict[str, float]:
        """The means, by name."""
        return {name: values.double().mean().item() for name, values in self.state_dict().items()}

    def pop(self) -> dict[str, float]:
        """The means, by name; they start anew."""
        means = self.means()
        self._values.clear()
        return means

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The values, by name."""
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on from them."""
        self._values = {name: list(values) for name, values in state.items()}


def check_logger(cfg: Config) -> None:
    """Refuses a logger whose package is not installed."""
    try:
        importlib.import_module(cfg.kind)  # they are called as their packages are
    except ImportError as error:
        raise UserError(
            f"logger={cfg.kind} needs a package that is not installed: "
            f"`pip install {cfg.kind}`, or use logger=csv."
        ) from error


def make_logger(cfg: Config, run_dir: Path, name: str) -> Logger | None:
    """The logger that ``logger=`` asks for, besides the CSV files that every run writes."""
    if cfg.kind == "csv":
        return None
    options = {"project": cfg.project, "offline": cfg.offline} if cfg.kind == "wandb" else {}
    return get_logger(cfg.kind, str(run_dir), name, wandb_kwargs=options)
