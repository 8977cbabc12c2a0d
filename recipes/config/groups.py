"""The groups `env`, `collector` and `logger`: every key with its type, range and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vmfer_recipes.config.keys import MISSING, Config, PartConfig, key, schema


@dataclass
class EnvConfig(Config):
    """The task."""

    name: str = key(MISSING, "Gymnasium id, such as Hopper-v4 or my_package:Point-v0")
    backend: str = key(
        "gymnasium", "library that the name belongs to", choices=("gymnasium", "dm_control")
    )
    kwargs: dict[str, Any] = key({}, "arguments of the environment, as in env.kwargs.gain=2")
    wrappers: list[str] = key(
        [], "gymnasium.Wrapper classes by import path, the innermost first: [my_package.MyWrapper]"
    )
    action_repeat: int = key(
        1, "times that every action is repeated, as one step with the sum of rewards", low=1
    )
    normalize_observations: bool = key(
        False, "normalize by running mean and variance; replay=her always does"
    )
    blocking: bool = key(
        False, "a step waits for a device or a server: step those of num_envs= at the same time"
    )
    clip: float = key(5.0, "bound of normalized observations; replay=her has its own", low=1e-9)


@dataclass
class CollectorConfig(Config):
    """Which processes step the environment."""

    name: str = key(MISSING, "the choice")

    @property
    def is_single(self) -> bool:
        """Whether the training process steps the environment."""
        return isinstance(self, SingleCollectorConfig)


@schema("single", group="collector")
class SingleCollectorConfig(CollectorConfig):
    """Environments in the training process."""

    name: str = key("single", "environments in the training process", choices=("single",))


@dataclass
class WorkersConfig(CollectorConfig):
    """Workers in other processes, which send chunks of transitions to the learner."""

    num_workers: int = key(
        2,
        "number of workers, each with num_envs environments",
        low=1,
        high=10_000,
        aka=("n_workers",),
    )
    chunk: int = key(16, "steps per environment that a worker sends together", low=1)
    max_lead: int = key(1000, "frames by which workers may be ahead of the learner", low=0)
    sync: bool = key(False, "fixed order of chunks: results do not depend on the workers' speed")
    patience: float = key(300.0, "seconds without data after which a run stops", low=1)


@schema("processes", group="collector")
class ProcessesCollectorConfig(WorkersConfig):
    """Worker processes on this machine."""

    name: str = key("processes", "worker processes on this machine", choices=("processes",))


@schema("ray", group="collector")
class RayCollectorConfig(WorkersConfig):
    """Ray actors as workers, on one machine or several."""

    name: str = key("ray", "Ray actors as workers", choices=("ray",))


@dataclass
class LoggerConfig(PartConfig):
    """Where metrics go besides the CSV files."""


@schema("csv", group="logger")
class CSVLoggerConfig(LoggerConfig):
    """Only eval.csv and train.csv."""


@schema("tensorboard", group="logger")
class TensorBoardLoggerConfig(LoggerConfig):
    """Also TensorBoard event files in the run directory."""

    _target_: str = "torchrl.record.loggers.TensorboardLogger"


@schema("wandb", group="logger")
class WandbLoggerConfig(LoggerConfig):
    """Also Weights & Biases."""

    _target_: str = "torchrl.record.loggers.WandbLogger"
    project: str = key("torchrl_vmfer", "project on Weights & Biases", is_argument=True)
    offline: bool = key(
        False, "keep the data in run_dir, for a later `wandb sync`", is_argument=True
    )


@schema("custom", group="logger")
class CustomLoggerConfig(LoggerConfig):
    """A logger of the user, derived from TorchRL's: ``logger=my_package.MyLogger``."""

    _target_: str = MISSING
