"""The groups `sampler` and `replay`: every key with its type, range and default.

``_target_`` is the class that draws the batch, as in Hydra. Arguments of this library's samplers
are defined in ``torchrl_vmfer.arguments``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchrl_vmfer import arguments as library
from vmfer_recipes.config.keys import MISSING, PartConfig, argument, key, schema

_UNIFORM = "torchrl.data.RandomSampler"
_RUN_NAME = "its name in run directories and reports"


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


@schema("weighted", group="sampler")
class WeightedSamplerConfig(SamplerConfig):
    """The actor draws its own uniform batch, and its loss is weighted by the factors."""

    _target_: str = _UNIFORM
    weight: str = key("factor", "what the actor's loss is weighted by", choices=("factor",))


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


@schema("saturated", group="sampler")
class SaturatedSamplerConfig(SamplerConfig):
    """The actor's batch is drawn by how close the policy's stored actions are to their bounds."""

    _target_: str = "vmfer_recipes.agent.replay.SaturatedSampler"
    power: float = argument(
        replace(
            library.POWER,
            default=4.0,
            meaning="P ∝ exp(power · mean |component of the policy's action|); 0 is uniform",
        )
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
        "memory", "memmap: in files in run_dir, for buffers larger than the memory",
        choices=("memory", "memmap"),
    )  # fmt: skip

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
    alpha: float = argument(replace(library.RANK_ALPHA, default=0.6, high=7))
    beta: float = argument(replace(library.RANK_BETA, default=0.4))

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
    her_ratio: float = argument(library.HER_RATIO)
    strategy: str = argument(library.STRATEGY)
    clip: float = key(5.0, "bound of normalized observations and goals", low=1e-9)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the sampler: none."""
        return {}


@schema("custom", group="replay")
class CustomReplayConfig(ReplayConfig):
    """A sampler of the user for the critics, named by its import path."""

    _target_: str = MISSING
    kwargs: dict[str, Any] = key({}, "arguments of the sampler: replay.kwargs.alpha=0.5")
