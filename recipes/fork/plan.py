"""All forks of a command, with their directories. Mistakes are found here, before any fork runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfer_recipes.config.errors import UserError, first_line, unwritable
from vmfer_recipes.config.groups import CSVLoggerConfig
from vmfer_recipes.config.names import differing, folder_name, group_name
from vmfer_recipes.config.saved import read_config, written_config
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.fork.arms import Arm, make_arms
from vmfer_recipes.fork.options import ForkConfig
from vmfer_recipes.fork.sources import Source, find_sources, setting_of
from vmfer_recipes.run.directory import RunDirectory
from vmfer_recipes.run.files import replacing

__all__ = ["Fork", "ForkDirectory", "Moment", "Plan", "make_plan"]

_LEAST_INTERVAL = 1000  # the fewest steps between checkpoints of a fork


class ForkDirectory(RunDirectory):
    """The directory of a fork. Without a ``config.yaml``, reports do not count it as a run."""

    config_file = "fork.yaml"


@dataclass(frozen=True)
class Fork:
    """One arm that continues from one checkpoint, with the random numbers of one draw.

    Attributes:
        source: the checkpoint.
        arm: the method.
        draw: the number of the draw, from 0.
        cfg: the configuration of the continued run, with the directory of the fork.
    """

    source: Source
    arm: Arm
    draw: int
    cfg: TrainingConfig

    @property
    def path(self) -> Path:
        """The directory of the fork."""
        return Path(self.cfg.run_dir)

    @property
    def is_finished(self) -> bool:
        """Whether the fork has a result."""
        return (self.path / "finished").exists()

    @property
    def title(self) -> str:
        """The fork in words."""
        return (
            f"seed {self.source.seed}, step {self.source.step:,}, {self.arm.name}, draw {self.draw}"
        )


@dataclass(frozen=True)
class Moment:
    """A checkpoint and its forks.

    Attributes:
        source: the checkpoint.
        path: the folder of its forks.
        forks: the forks, draw by draw, so that an unfinished study is balanced.
    """

    source: Source
    path: Path
    forks: list[Fork]

    @property
    def record(self) -> Path:
        """The file with the fingerprint of the checkpoint and its evaluation before the forks."""
        return self.path / "checkpoint.json"

    def read_record(self) -> dict[str, Any] | None:
        """The contents of the record, or ``None`` if there is none."""
        if not self.record.exists():
            return None
        try:
            record = json.loads(self.record.read_text())
            missing = {"fingerprint", "run", "return_mean"}.difference(record)
            if missing:
                raise ValueError(f"it has no {min(missing)}")
            return dict(record)
        except (OSError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.record} cannot be read ({first_line(error)}): delete it, and the same "
                "command writes it again."
            ) from error

    def check(self) -> None:
        """Raises an error if the folder holds forks of another checkpoint or configuration."""
        record = self.read_record()
        if record is not None and record["fingerprint"] != self.source.fingerprint():
            raise UserError(
                f"{self.path} holds forks of another checkpoint, from {record['run']}: choose "
                "another out=."
            )
        for fork in self.forks:
            try:
                ForkDirectory(fork.cfg).check()
            except UserError as error:  # names the key of a recipe
                raise UserError(str(error).replace("another run_dir", "another out=")) from error


@dataclass(frozen=True)
class Plan:
    """All forks of a command.

    Attributes:
        options: the command.
        out: the folder of all output.
        arms: the methods; the first is the reference.
        moments: the checkpoints with their forks.
    """

    options: ForkConfig
    out: Path
    arms: list[Arm]
    moments: list[Moment]

    @property
    def forks(self) -> list[Fork]:
        """All forks, in the order in which they run."""
        return [fork for moment in self.moments for fork in moment.forks]

    @property
    def settings(self) -> dict[str, Any]:
        """What all forks in the folder have in common."""
        options = self.options
        length = "steps" if options.mode == "live" else "updates"
        cfg = self.moments[0].forks[0].cfg
        return {
            "mode": options.mode,
            length: options.length,
            "num_eval_episodes": cfg.num_eval_episodes,
            "run": setting_of(self.moments[0].source.cfg),
        }

    def check(self) -> None:
        """Raises an error if the folder holds forks with other settings."""
        file = self.out / "settings.yaml"
        if file.exists():
            try:
                before = _flat_settings(read_config(file))
                now = _flat_settings(self.settings)
            except Exception as error:
                raise UserError(
                    f"{file} cannot be read ({first_line(error)}): choose another out=."
                ) from error
            values = [
                f"{key}={before.get(key)} there, {now.get(key)} here"
                for key in differing(before, now)
            ]
            if values:
                raise UserError(
                    f"{self.out} holds forks with other settings ({'; '.join(values)}): choose "
                    "another out= or use the same values."
                )
        for moment in self.moments:
            moment.check()

    def write_settings(self) -> None:
        """Writes the settings that later commands must share."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with replacing(self.out / "settings.yaml") as file:
                file.write(written_config(self.settings))
        except OSError as error:
            raise unwritable(self.out, error) from error


def _flat_settings(settings: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in settings.items() if key != "run"}
    return own | {f"run: {key}": value for key, value in settings["run"].items()}


def make_plan(options: ForkConfig) -> Plan:
    """Finds the checkpoints, reads the arms and lists all forks."""
    options.check_length()
    sources = find_sources(options.run, options.at)
    first = sources[0].cfg
    arms = make_arms(options.arms, first)
    if options.baseline is not None:
        name = " ".join(options.baseline.split())
        if name not in [arm.name for arm in arms]:
            raise UserError(
                f"baseline={name} is not an arm: use one of {', '.join(arm.name for arm in arms)}."
            )
        arms.sort(key=lambda arm: arm.name != name)
    default = f"runs/forks/{folder_name(group_name(first))}/{options.mode}-{options.length}"
    out = Path(options.out or default)
    episodes = options.num_eval_episodes or first.num_eval_episodes
    moments = []
    for source in sources:
        path = out / f"seed{source.seed}" / f"step{source.step}"
        forks = [
            Fork(source, arm, draw, _config(source, arm, draw, options, episodes, path))
            for draw in range(options.draws)
            for arm in arms
        ]
        moments.append(Moment(source, path, forks))
    plan = Plan(options, out, arms, moments)
    plan.check()
    return plan


def _config(
    source: Source, arm: Arm, draw: int, options: ForkConfig, episodes: int, path: Path
) -> TrainingConfig:
    cfg = arm.apply(source.cfg)
    is_live = options.mode == "live"
    last = source.step + (options.length if is_live else 0)
    interval = cfg.checkpoint_interval
    if is_live:
        interval = min(interval, max(options.length // 4, _LEAST_INTERVAL))
    cfg = dataclasses.replace(
        cfg,
        total_frames=last,
        eval_interval=last,  # once, at the end
        num_eval_episodes=episodes,
        checkpoint_interval=interval,
        keep_checkpoint=False,
        logger=CSVLoggerConfig(),
        resume=True,
        run_dir=str(path / arm.folder / f"draw{draw}"),
    )
    if is_live:
        cfg.check()
    return cfg
