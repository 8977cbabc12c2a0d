"""Tables that a resumed run continues to the byte, and the loggers that mirror them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torchrl.record.loggers import Logger, get_logger

from training.errors import UserError

__all__ = ["Averages", "Table", "make_logger"]


class Table:
    """A CSV file. Its state is its length: what a stopped run wrote beyond it is cut off.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear(self) -> None:
        """Starts anew."""
        self._path.unlink(missing_ok=True)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row; the first one decides the columns."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(row), lineterminator="\n")
        if not self._path.exists():
            writer.writeheader()
        writer.writerow(row)
        with self._path.open("a") as file:
            file.write(text.getvalue())

    def state_dict(self) -> dict[str, int]:
        """The present length."""
        return {"bytes": self._path.stat().st_size if self._path.exists() else 0}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Cuts the file to the length that it had."""
        if state["bytes"] == 0:
            self.clear()
        elif not self._path.exists() or self._path.stat().st_size < state["bytes"]:
            raise UserError(
                f"{self._path} is shorter than at the last checkpoint: it was changed by hand. "
                "Choose another run_dir."
            )
        else:
            os.truncate(self._path, state["bytes"])


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds a value of each."""
        for name, value in metrics.items():
            value = value.detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def pop(self) -> dict[str, float]:
        """The means, by name; they start anew."""
        means = {name: (self._sums[name] / self._counts[name]).item() for name in self._sums}
        self.__init__()  # type: ignore[misc]
        return means

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from them."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


def make_logger(cfg: DictConfig, run_dir: Path, name: str) -> Logger | None:
    """The logger that ``logger=`` asks for, besides the CSV files that every run writes."""
    if cfg.kind == "csv":
        return None
    options = {"project": cfg.project, "offline": cfg.offline} if cfg.kind == "wandb" else {}
    try:
        return get_logger(cfg.kind, str(run_dir), name, wandb_kwargs=options)
    except ImportError as error:
        raise UserError(
            f"logger={cfg.kind} needs a package that is not installed: "
            f"`pip install {cfg.kind}`, or use logger=csv."
        ) from error
