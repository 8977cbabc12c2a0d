"""All forks of a command, with their directories. Mistakes are found here, before any fork runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import CSVLoggerConfig
from vmfer_recipes.config.keys import MISSING, Config, key
from vmfer_recipes.config.names import differing, folder_name, group_name
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.fork.arms import Arm, make_arms
from vmfer_recipes.fork.sources import Source, find_sources
from vmfer_recipes.run.directory import RunDirectory

_LEAST_INTERVAL = 1000  # the fewest steps between checkpoints of a fork


@dataclass
class ForkConfig(Config):
    """Continues several methods from the same checkpoints and compares their returns."""

    run: list[str] = key(
        MISSING, "run directories that differ only in their seed, or a pattern such as '.../seed*'"
    )
    at: list[int] = key([], "steps of the checkpoints; []: all in checkpoint/kept", low=1)
    arms: list[str] = key(
        ["fresh", "vmf_uncertainty", "vmf_rank"],
        "methods: choices of sampler=, with or without overrides: 'vmf_rank directions=pre_tanh'",
    )
    baseline: str | None = key(None, "arm that the others are compared with; null: the first")
    mode: str = key(
        "live",
        "full training (live), or updates of the actor only (frozen)",
        choices=("live", "frozen"),
    )
    steps: int | None = key(None, "environment steps with mode=live; null: 10,000", low=1)
    updates: int | None = key(None, "updates of the actor with mode=frozen; null: 500", low=1)
    draws: int = key(
        5, "repetitions of each arm, with different random numbers", low=1, high=10_000
    )
    num_eval_episodes: int | None = key(
        None, "episodes of an evaluation, before and after; null: as in the first run", low=1
    )
    out: str | None = key(None, "directory of all output; null: in runs/forks")

    @property
    def length(self) -> int:
        """The number of steps or updates of a fork."""
        return (self.steps or 10_000) if self.mode == "live" else (self.updates or 500)


class ForkDirectory(RunDirectory):
    """The directory of a fork. Without a ``config.yaml``, reports do not count it as a run."""

    config_file = "fork.yaml"


@dataclass(frozen=True)
class Fork:
    """One arm that continues from one checkpoint, with the random numbers of one draw.

    ``cfg`` is the configuration of the continued run, with the directory of the fork.
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


@dataclass(frozen=True)
class Moment:
    """A checkpoint, the folder of its forks, and what these have in common.

    They are sorted by draw, so that an unfinished study is balanced.
    """

    source: Source
    path: Path
    forks: list[Fork]
    settings: dict[str, Any]

    @property
    def record(self) -> Path:
        """The file with the settings, the fingerprint of the checkpoint and its evaluation."""
        return self.path / "checkpoint.json"

    @property
    def return_before(self) -> float | None:
        """The return of the checkpoint, or ``None`` if it is not evaluated yet.

        Raises an error if the folder holds forks of another checkpoint or with other settings.
        """
        if not self.record.exists():
            return None
        record = json.loads(self.record.read_text())
        if record["fingerprint"] != self.source.fingerprint:
            raise UserError(
                f"{self.path} holds forks of another checkpoint, from {record['run']}: choose "
                "another out=."
            )
        before = {name: record.get(name) for name in self.settings}
        values = [
            f"{name}={before[name]} there, {self.settings[name]} here"
            for name in differing(before, self.settings)
        ]
        if values:
            raise UserError(
                f"{self.path} holds forks with other settings ({'; '.join(values)}): choose "
                "another out= or use the same values."
            )
        return float(record["return_mean"])


@dataclass(frozen=True)
class Plan:
    """All forks of a command; the first arm is the reference."""

    options: ForkConfig
    out: Path
    arms: list[Arm]
    moments: list[Moment]

    @property
    def forks(self) -> list[Fork]:
        """All forks, in the order in which they run."""
        return [fork for moment in self.moments for fork in moment.forks]


def make_plan(options: ForkConfig) -> Plan:
    """Finds the checkpoints, reads the arms and lists all forks."""
    length, other = ("steps", "updates") if options.mode == "live" else ("updates", "steps")
    if getattr(options, other) is not None:
        raise UserError(
            f"{other}={getattr(options, other)} has no effect with mode={options.mode}: remove "
            "it, or change the mode."
        )
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
    settings = {"mode": options.mode, length: options.length, "num_eval_episodes": episodes}
    moments = []
    for source in sources:
        path = out / f"seed{source.seed}" / f"step{source.step}"
        configs = [(arm, _config(arm.apply(source.cfg), source.step, options)) for arm in arms]
        forks = []
        for draw, (arm, cfg) in itertools.product(range(options.draws), configs):
            run_dir = str(path / arm.folder / f"draw{draw}")
            cfg = dataclasses.replace(cfg, num_eval_episodes=episodes, run_dir=run_dir)
            forks.append(Fork(source, arm, draw, cfg))
        moments.append(Moment(source, path, forks, settings))
        _ = moments[-1].return_before  # fails if the folder holds other forks
    return Plan(options, out, arms, moments)


def _config(cfg: TrainingConfig, step: int, options: ForkConfig) -> TrainingConfig:
    """The configuration of an arm that continues from a step."""
    interval = cfg.checkpoint_interval
    if options.mode == "live":
        step += options.length
        interval = min(interval, max(options.length // 4, _LEAST_INTERVAL))
    continued = dataclasses.replace(
        cfg,
        total_frames=step,
        eval_interval=step,  # once, at the end
        checkpoint_interval=interval,
        keep_checkpoint=False,
        logger=CSVLoggerConfig(),
        resume=True,
    )
    if options.mode == "live":
        continued.check()
    return continued
