"""The directory of a run: its configuration and its lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError, first_line, unwritable
from vmfer_recipes.config.names import differing, flat
from vmfer_recipes.config.saved import read_config
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.files import checkpoint_files, lock, replacing, step_of

# Keys that may change when a run resumes.
MAY_CHANGE = (
    *("resume", "run_dir", "logger", "keep_checkpoint", "keep_checkpoints_at", "solved_at"),
    *("max_eval_steps", "max_minutes", "stop_when_solved", "log_info"),
)
# Keys that say which seed, and how a run is watched and executed, not what it learns.
INCIDENTAL = (
    *(*MAY_CHANGE, "seed", "total_frames", "threads", "device"),
    *("eval_interval", "num_eval_episodes", "log_interval", "checkpoint_interval"),
)


def identity(cfg: TrainingConfig) -> dict[str, Any]:
    """The values that a run keeps from start to end, by dotted key."""
    return _kept(flat(cfg.as_dict()))


def _kept(values: dict[str, Any]) -> dict[str, Any]:
    changing = {*MAY_CHANGE}
    if isinstance(values.get("total_frames"), int):
        changing.add("total_frames")
    return {key: value for key, value in values.items() if key.split(".")[0] not in changing}


class RunDirectory:
    """The directory of a run."""

    config_file = "config.yaml"

    def __init__(self, cfg: TrainingConfig) -> None:
        self.path = Path(cfg.run_dir)
        self._config = cfg.as_dict()
        self.identity = identity(cfg)

    def check(self) -> None:
        """Raises an error if the directory holds a run that this one cannot continue.

        A run that has neither ended nor saved a checkpoint is started again.
        """
        before = self._saved_config() if self._has_results else None
        if before is None:
            return
        if not self._config["resume"]:
            raise UserError(
                f"{self.path} holds a run and resume=false: delete it or choose another run_dir."
            )
        if values := self._differences(before):
            raise UserError(
                f"{self.path} holds a run of another configuration ({values}): choose another "
                "run_dir or use the same values."
            )
        self._check_length(before["total_frames"], self._config["total_frames"])

    def check_checkpoint(self, state: dict[str, Any]) -> None:
        """Raises an error if a checkpoint in the directory belongs to another run."""
        if values := self._differences(state["run"]):
            raise UserError(
                f"The checkpoint of step {state['step']} in {self.path} belongs to another run "
                f"({values}): delete it."
            )

    def _differences(self, other: dict[str, Any]) -> str:
        """The values of another configuration, by dotted key, with which no run can resume."""
        there, here = _kept(other), self.identity
        return "; ".join(
            f"{key}={there.get(key)} there, {here.get(key)} here" for key in differing(there, here)
        )

    def _saved_config(self) -> dict[str, Any] | None:
        """The configuration of the run in the directory, by dotted key; ``None`` without a run."""
        file = self.path / self.config_file
        if not file.exists():
            return None
        try:
            return flat(read_config(file))
        except Exception as error:
            raise UserError(
                f"{file} cannot be read ({first_line(error)}): restore a copy of it, or choose "
                "another run_dir."
            ) from error

    def _check_length(self, before: int, now: int) -> None:
        """Checks whether a run can end at another step than before."""
        saved = max(map(step_of, checkpoint_files(self.path / "checkpoint")), default=0)
        reached, what = saved, f"a run that is already at step {saved}"
        if self._has_end_mark:
            reached, what = before, f"a finished run of {before} steps"
        if now < reached:
            raise UserError(
                f"{self.path} holds {what}, more than total_frames={now}: use at least {reached}, "
                "or choose another run_dir."
            )
        if now != before and self._config["lr_schedule"] != "constant":
            raise UserError(
                f"{self.path} holds a run of {before} steps, and lr_schedule="
                f"{self._config['lr_schedule']} depends on their number: use "
                f"total_frames={before}, or choose another run_dir."
            )
        if self._has_end_mark and now > before and not saved:
            raise UserError(
                f"{self.path} holds {what} without a checkpoint, so it cannot be continued to "
                f"total_frames={now}: choose another run_dir to train from step 0, with "
                "keep_checkpoint=true."
            )

    @property
    def _has_end_mark(self) -> bool:
        return (self.path / "finished").exists()

    @property
    def _has_results(self) -> bool:
        folder = self.path / "checkpoint"
        return self._has_end_mark or any(map(checkpoint_files, (folder, folder / "kept")))

    def reopen(self) -> None:
        """Removes what a run writes at its end, so that it can be continued.

        The mark comes first: a process that is killed here leaves an unfinished run.
        """
        for name in ("finished", "policy.pt", "learning_curve.png"):
            (self.path / name).unlink(missing_ok=True)

    def is_finished(self) -> bool:
        """Whether the run is finished and is not to be continued. If so, prints a message.

        Raises an error as :meth:`check`.
        """
        self.check()
        if not self._has_end_mark:
            return False
        before = self._saved_config()
        if before is not None and before["total_frames"] < self._config["total_frames"]:
            return False
        print(f"The run in {self.path} is finished. Nothing to do.")
        return True

    def lock(self) -> FileIO:
        """Locks the directory, which is created if needed, until the returned file is closed.

        Removes the unfinished files of a process that was killed.
        """
        with self.writing():
            held = lock(self.path)
            checkpoints = (self.path / "checkpoint").rglob("*.unfinished")
            for leftover in (*self.path.glob("*.unfinished"), *checkpoints):
                leftover.unlink()
        return held

    def write_config(self) -> None:
        """Writes the file with the configuration."""
        with self.writing(), replacing(self.path / self.config_file) as file:
            file.write(OmegaConf.to_yaml(self._config))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which a full or read-only disk is reported in one line."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            raise unwritable(self.path, error) from error
