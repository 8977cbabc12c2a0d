"""The directory of a run: its configuration and its lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from omegaconf import OmegaConf

from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.files import replacing
from vmfer_recipes.training.keys import flat
from vmfer_recipes.training.lock import lock
from vmfer_recipes.training.options import Config

__all__ = ["RunDirectory"]

# Keys that do not affect the results of a run.
_INCIDENTAL = ("resume", "run_dir", "logger", "keep_checkpoints_at")


class RunDirectory:
    """The directory of a run.

    Args:
        cfg: the configuration of the run.

    Attributes:
        path: the directory.
    """

    def __init__(self, cfg: Config) -> None:
        self.path = Path(cfg.run_dir)
        self._config = cfg.as_dict()

    def check(self) -> None:
        """Raises an error if the directory holds a run with another configuration."""
        file = self.path / "config.yaml"
        if not file.exists():
            return
        if not self._config["resume"]:
            raise UserError(
                f"{self.path} holds a run and resume=false: delete it or choose another run_dir."
            )
        try:
            before = flat(OmegaConf.to_container(OmegaConf.load(file)))
        except Exception as error:
            raise UserError(
                f"{file} cannot be read ({first_line(error)}): restore a copy of it, or choose "
                "another run_dir."
            ) from error
        now = flat(self._config)
        differing = [
            f"{key}={before.get(key)} there, {now.get(key)} here"
            for key in sorted(before.keys() | now.keys())
            if key.split(".")[0] not in _INCIDENTAL and before.get(key) != now.get(key)
        ]
        if differing:
            raise UserError(
                f"{self.path} holds a run of another configuration ({'; '.join(differing)}): "
                "choose another run_dir or use the same values."
            )

    def is_finished(self) -> bool:
        """Whether the run is already finished. If so, prints a message."""
        if not (self.path / "finished").exists():
            return False
        print(f"The run in {self.path} is finished. Nothing to do.")
        return True

    def lock(self) -> FileIO:
        """Locks the directory, which is created if needed, until the returned file is closed."""
        with self.writing():
            return lock(self.path)

    def write_config(self) -> None:
        """Writes ``config.yaml``."""
        with self.writing(), replacing(self.path / "config.yaml") as file:
            file.write(OmegaConf.to_yaml(self._config))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which a full or read-only disk is reported in one line."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            raise UserError(
                f"The run directory {self.path} cannot be written ({first_line(error)}): make "
                "room on the disk and run the same command to resume from the last checkpoint, or "
                "choose another run_dir."
            ) from error
