"""The groups `env`, `collector` and `logger`: every key with its type, range and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vmfer_recipes.config.keys import MISSING, Config, key, schema

__all__ = [
    "CSVLoggerConfig",
    "CollectorConfig",
    "EnvConfig",
    "LoggerConfig",
    "MultiAsyncCollectorConfig",
    "MultiSyncCollectorConfig",
    "OwnLoggerConfig",
    "RayCollectorConfig",
    "SingleCollectorConfig",
    "TensorBoardLoggerConfig",
    "WandbLoggerConfig",
]


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
    clip: float = key(5.0, "bound of normalized observations; replay=her has its own", low=1e-9)


@dataclass
class CollectorConfig(Config):
    """Which processes step the environment."""

    kind: str = key(MISSING, "what the recipe does for this choice")


@schema("single", group="collector")
@dataclass
class SingleCollectorConfig(CollectorConfig):
    """Environments in the training process."""

    kind: str = key("single", "environments in the training process", choices=("single",))


@dataclass
class _WorkersConfig(CollectorConfig):
    num_workers: int = key(
        2, "worker processes, each with an environment", low=1, aka=("n_workers",)
    )


@schema("multi_sync", group="collector")
@dataclass
class MultiSyncCollectorConfig(_WorkersConfig):
    """Processes that take one step each, then wait for the same number of updates."""

    kind: str = key("multi_sync", "processes in step with the updates", choices=("multi_sync",))


@schema("multi_async", group="collector")
@dataclass
class MultiAsyncCollectorConfig(_WorkersConfig):
    """Processes that collect while the learner updates, one update per frame."""

    kind: str = key(
        "multi_async", "processes that run ahead of the learner", choices=("multi_async",)
    )
    max_lead: int = key(1000, "frames by which workers may be ahead of the learner", low=0)


@schema("ray", group="collector")
@dataclass
class RayCollectorConfig(_WorkersConfig):
    """Ray actors as workers and as replay buffer."""

    kind: str = key("ray", "Ray actors as workers and as replay buffer", choices=("ray",))
    frames_per_batch: int = key(
        50, "frames that a worker collects before it fetches new weights", low=1
    )


@dataclass
class LoggerConfig(Config):
    """Where metrics go besides the CSV files."""

    kind: str = key("csv", "where metrics go besides the CSV files")


@schema("csv", group="logger")
@dataclass
class CSVLoggerConfig(LoggerConfig):
    """Only eval.csv and train.csv."""

    kind: str = key("csv", "only eval.csv and train.csv", choices=("csv",))


@schema("tensorboard", group="logger")
@dataclass
class TensorBoardLoggerConfig(LoggerConfig):
    """Also TensorBoard event files in the run directory."""

    kind: str = key("tensorboard", "also TensorBoard event files", choices=("tensorboard",))


@schema("wandb", group="logger")
@dataclass
class WandbLoggerConfig(LoggerConfig):
    """Also Weights & Biases."""

    kind: str = key("wandb", "also Weights & Biases", choices=("wandb",))
    project: str = key("torchrl_vmfer", "project at Weights & Biases")
    offline: bool = key(False, "keep the data in run_dir, for a later `wandb sync`")


@schema("own", group="logger")
@dataclass
class OwnLoggerConfig(LoggerConfig):
    """A logger of the user's own module: ``logger=my_package.MyLogger``."""

    kind: str = key("own", "a class derived from TorchRL's Logger", choices=("own",))
    name: str = key(MISSING, "its name")
    path: str = key(MISSING, "import path of the class, called with run name and directory")
