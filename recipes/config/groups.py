"""The groups of a recipe: every key with its type, range and default.

``_target_`` is the class that draws a batch or logs, as in Hydra. Arguments of this library's
samplers are defined in ``torchrl_vmfer.arguments``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchrl_vmfer import arguments as library
from vmfer_recipes.config.keys import MISSING, Config, PartConfig, argument, key, schema

_UNIFORM = "torchrl.data.RandomSampler"
_RUN_NAME = "its name in run directories and reports"


@dataclass
class EnvConfig(Config):
    """The task."""

    name: str = key(
        MISSING, "Gymnasium id, such as Hopper-v4 or my_package:Point-v0", aka=("env_id",)
    )
    backend: str = key(
        "gymnasium", "library that the name belongs to", choices=("gymnasium", "dm_control")
    )
    kwargs: dict[str, Any] = key(
        {},
        "arguments of the environment, as in env.kwargs.gain=2",
        aka=("max_episode_steps",),
    )
    wrappers: list[Any] = key(
        [],
        "gymnasium.Wrapper classes by import path, the innermost first: [my_package.MyWrapper]; "
        "with arguments: [{_target_: my_package.MyWrapper, steps: 50}]",
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
class SamplerConfig(PartConfig):
    """How the actor's batch is drawn."""

    name: str = key(MISSING, _RUN_NAME)


@schema("shared", group="sampler")
class SharedSamplerConfig(SamplerConfig):
    """The actor uses the critics' batch."""


@schema("fresh", group="sampler")
class FreshSamplerConfig(SamplerConfig):
    """The actor draws its own uniform batch."""

    _target_: str = _UNIFORM


@schema("vmf", group="sampler")
class VMFSamplerConfig(SamplerConfig):
    """VMFSampler draws the actor's batch by stored factors."""

    _target_: str = "torchrl_vmfer.VMFSampler"
    mode: str = argument(library.MODE)
    power: float = argument(library.POWER)
    share: float = key(
        1.0, "share of the batch drawn by factors; the rest is uniform", low=1e-9, high=1
    )
    initial_factor: float = argument(library.INITIAL_FACTOR)
    smoothing: float = argument(library.SMOOTHING)
    pool_size: int | None = argument(library.POOL_SIZE)


@schema("direct", group="sampler")
class DirectSamplerConfig(SamplerConfig):
    """The batch is resampled from candidates scored by the current networks."""

    _target_: str = "torchrl_vmfer.CandidatePool"
    mode: str = argument(library.MODE)
    num_candidates: int = key(
        2560, "candidates scored for each batch; the paper uses 256, 2560 and 12800", low=1
    )


@schema("inverse_td", group="sampler")
class InverseTDSamplerConfig(SamplerConfig):
    """InverseTDSampler draws the actor's batch by stored TD errors: small ones are preferred."""

    _target_: str = "torchrl_vmfer.InverseTDSampler"
    exponent: float = argument(library.EXPONENT)
    floor: float = argument(library.FLOOR)


@schema("gradient_norm", group="sampler")
class GradientNormSamplerConfig(SamplerConfig):
    """GradientNormSampler draws the actor's batch by stored norms of the action gradient."""

    _target_: str = "torchrl_vmfer.GradientNormSampler"
    power: float = argument(library.NORM_POWER)


@schema("signal", group="sampler")
class SignalSamplerConfig(SamplerConfig):
    """SignalSampler draws the actor's batch by the rank of any stored signal."""

    _target_: str = "torchrl_vmfer.SignalSampler"
    signal: str = key(
        "value_gap",
        "a name, such as value_gap, or the import path of a function score(loss, batch) -> [batch]",
        is_argument=True,
    )
    power: float = argument(library.SIGNAL_POWER)


@schema("saturated", group="sampler")
class SaturatedSamplerConfig(SamplerConfig):
    """The actor's batch is drawn by how close the policy's stored actions are to their bounds."""

    _target_: str = "vmfer_recipes.agent.replay.SaturatedSampler"
    power: float = argument(
        library.POWER,
        default=4.0,
        meaning="P ∝ exp(power · mean |component of the policy's action|); 0 is uniform",
    )


@schema("odpr", group="sampler")
class ReturnSamplerConfig(SamplerConfig):
    """The actor's batch is drawn by the returns of the episodes of a dataset."""

    _target_: str = "vmfer_recipes.agent.replay.ReturnSampler"
    floor: float = key(
        0.1,
        "P ∝ return of the episode, scaled from 0 to 1, + floor",
        low=1e-6,
        high=1e6,
        is_argument=True,
    )


@schema("recent", group="sampler")
class RecentSamplerConfig(SamplerConfig):
    """RecentSampler draws the actor's batch from the newest transitions."""

    _target_: str = "torchrl_vmfer.RecentSampler"
    decay: float = argument(library.DECAY)
    min_size: int = argument(library.MIN_SIZE)
    cycle: int = argument(library.CYCLE)


@schema("old", group="sampler")
class OldSamplerConfig(SamplerConfig):
    """OldSampler prefers old transitions for the actor's batch."""

    _target_: str = "torchrl_vmfer.OldSampler"
    exponent: float = argument(library.AGE_EXPONENT)


@schema("on_policy", group="sampler")
class OnPolicySamplerConfig(SamplerConfig):
    """The actor uses the one of several uniform batches that is closest to its policy."""

    _target_: str = _UNIFORM
    num_batches: int = key(3, "candidate batches, from which one is chosen", low=1, high=1000)


@schema("custom", group="sampler")
class CustomSamplerConfig(SamplerConfig):
    """A sampler of the user, named by its import path."""

    _target_: str = MISSING
    kwargs: dict[str, Any] = key({}, "arguments of the sampler: sampler.kwargs.alpha=0.5")


@dataclass
class ReplayConfig(PartConfig):
    """The replay buffer, and how the critics' batch is drawn."""

    name: str = key(MISSING, _RUN_NAME)
    _target_: str = _UNIFORM
    buffer_size: int = key(1_000_000, "capacity in transitions", low=1)
    storage: str = key(
        "memory",
        "memmap: in files in run_dir, for buffers larger than the memory",
        choices=("memory", "memmap"),
    )

    @property
    def has_goals(self) -> bool:
        """Whether the task has goals, which are relabeled."""
        return isinstance(self, HindsightReplayConfig)


@schema("uniform", group="replay")
class UniformReplayConfig(ReplayConfig):
    """Uniform replay."""


@schema("per", group="replay")
class PrioritizedReplayConfig(ReplayConfig):
    """Proportional prioritized replay."""

    _target_: str = "torchrl.data.PrioritizedSampler"
    alpha: float = argument(library.RANK_ALPHA, default=0.6, high=7)
    beta: float = argument(library.RANK_BETA, default=0.4)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the sampler, which needs the capacity."""
        return {**super().arguments, "max_capacity": self.buffer_size}


@schema("per_rank", group="replay")
class RankPrioritizedReplayConfig(ReplayConfig):
    """Rank-based prioritized replay."""

    _target_: str = "torchrl_vmfer.RankPrioritizedSampler"
    alpha: float = argument(library.RANK_ALPHA)
    beta: float = argument(library.RANK_BETA)


@schema("lap", group="replay")
class LAPReplayConfig(ReplayConfig):
    """Loss-adjusted prioritized replay: prefers TD errors above 1, with the Huber loss."""

    _target_: str = "torchrl_vmfer.LAPSampler"
    alpha: float = argument(library.EXPONENT)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the sampler."""
        return {"exponent": self.alpha}


@schema("her", group="replay")
class HindsightReplayConfig(ReplayConfig):
    """Uniform replay with hindsight relabeling."""

    buffer_size: int = 3_000_000
    her_ratio: float = argument(library.HER_RATIO, is_argument=False)  # the buffer's
    strategy: str = argument(library.STRATEGY, is_argument=False)
    clip: float = key(5.0, "bound of normalized observations and goals", low=1e-9)


@schema("custom", group="replay")
class CustomReplayConfig(ReplayConfig):
    """A sampler of the user for the critics, named by its import path."""

    _target_: str = MISSING
    kwargs: dict[str, Any] = key({}, "arguments of the sampler: replay.kwargs.alpha=0.5")


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
