"""The groups `sampler` and `replay`: every key with its type, range and default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vmfer_recipes.config.keys import MISSING, Config, key, schema

__all__ = [
    "DirectSamplerConfig",
    "FreshSamplerConfig",
    "GradientNormSamplerConfig",
    "HindsightReplayConfig",
    "InverseTDSamplerConfig",
    "LAPReplayConfig",
    "OldSamplerConfig",
    "OnPolicySamplerConfig",
    "OwnReplayConfig",
    "OwnSamplerConfig",
    "PrioritizedReplayConfig",
    "RecentSamplerConfig",
    "ReplayConfig",
    "SamplerConfig",
    "SaturatedSamplerConfig",
    "SharedSamplerConfig",
    "UniformReplayConfig",
    "VMFSamplerConfig",
    "WeightedSamplerConfig",
]

_LARGEST_POWER, _LARGEST_EXPONENT = 100, 7
_RUN_NAME = "its name in run directories and reports"


@dataclass
class SamplerConfig(Config):
    """How the actor's batch is drawn."""

    name: str = key(MISSING, _RUN_NAME)
    kind: str = key(MISSING, "what the recipe does for this choice")


@schema("shared", group="sampler")
@dataclass
class SharedSamplerConfig(SamplerConfig):
    """The actor uses the critics' batch."""

    kind: str = key("shared", "the actor uses the critics' batch", choices=("shared",))


@schema("fresh", group="sampler")
@dataclass
class FreshSamplerConfig(SamplerConfig):
    """The actor draws its own uniform batch."""

    kind: str = key("fresh", "the actor draws its own uniform batch", choices=("fresh",))


@dataclass
class _ModeConfig(SamplerConfig):
    mode: str = key(
        "uncertainty",
        "P ∝ factor (uncertainty) or P ∝ 1/rank of the factor (rank)",
        choices=("uncertainty", "rank"),
    )


@schema("vmf", group="sampler")
@dataclass
class VMFSamplerConfig(_ModeConfig):
    """VMFSampler draws the actor's batch by stored factors."""

    kind: str = key("vmf", "VMFSampler draws by stored factors", choices=("vmf",))
    power: float = key(
        1.0,
        "P ∝ factor^power; 1: the paper's method, 0: uniform, negative: prefers disagreement",
        low=-_LARGEST_POWER,
        high=_LARGEST_POWER,
    )
    share: float = key(
        1.0, "share of the batch drawn by factors; the rest is uniform", low=1e-9, high=1
    )
    initial_factor: float = key(1.0, "factor of a new transition", low=1e-9, high=math.e)
    smoothing: float = key(
        0.0, "weight of the old factor when a factor is updated", low=0, high=0.999999
    )
    pool_size: int | None = key(
        None, "draw a uniform pool of this size and resample from it; null: the whole buffer", low=1
    )


@schema("direct", group="sampler")
@dataclass
class DirectSamplerConfig(_ModeConfig):
    """The batch is resampled from candidates scored by the current networks."""

    kind: str = key("direct", "resample from newly scored candidates", choices=("direct",))
    num_candidates: int = key(
        2560, "candidates scored for each batch; the paper uses 256, 2560 and 12800", low=1
    )


@schema("weighted", group="sampler")
@dataclass
class WeightedSamplerConfig(SamplerConfig):
    """The actor draws its own uniform batch, and its loss is weighted by the factors."""

    kind: str = key(
        "weighted", "uniform batch, weighted by the current factors", choices=("weighted",)
    )


@schema("inverse_td", group="sampler")
@dataclass
class InverseTDSamplerConfig(SamplerConfig):
    """InverseTDSampler draws the actor's batch by stored TD errors: small ones are preferred."""

    kind: str = key(
        "inverse_td", "InverseTDSampler draws by stored TD errors", choices=("inverse_td",)
    )
    exponent: float = key(
        0.4, "P ∝ max(|TD error|, floor)^-exponent; 0 is uniform", low=0, high=_LARGEST_EXPONENT
    )
    floor: float = key(1.0, "smaller absolute TD errors count as this value", low=1e-9)


@schema("gradient_norm", group="sampler")
@dataclass
class GradientNormSamplerConfig(SamplerConfig):
    """GradientNormSampler draws the actor's batch by stored norms of the action gradient."""

    kind: str = key(
        "gradient_norm",
        "GradientNormSampler draws by the norm of the action gradient",
        choices=("gradient_norm",),
    )
    power: float = key(1.0, "P ∝ norm^power; 0 is uniform", low=0, high=_LARGEST_EXPONENT)


@schema("saturated", group="sampler")
@dataclass
class SaturatedSamplerConfig(SamplerConfig):
    """The actor's batch is drawn by how close the policy's stored actions are to their bounds."""

    kind: str = key("saturated", "prefers saturated actions of the policy", choices=("saturated",))
    power: float = key(
        4.0,
        "P ∝ exp(power · mean |component of the policy's action|); 0 is uniform",
        low=-_LARGEST_POWER,
        high=_LARGEST_POWER,
    )


@schema("recent", group="sampler")
@dataclass
class RecentSamplerConfig(SamplerConfig):
    """RecentSampler draws the actor's batch from the newest transitions."""

    kind: str = key("recent", "RecentSampler draws new transitions", choices=("recent",))
    decay: float = key(
        0.996,
        "batch k of a cycle is uniform over the newest fraction decay^k of the buffer",
        low=1e-9,
        high=1,
    )
    min_size: int = key(5000, "smallest number of transitions to draw from", low=1)
    cycle: int = key(1000, "batches of the actor per cycle", low=1)


@schema("old", group="sampler")
@dataclass
class OldSamplerConfig(SamplerConfig):
    """OldSampler prefers old transitions for the actor's batch."""

    kind: str = key("old", "OldSampler prefers old transitions", choices=("old",))
    exponent: float = key(
        2.0,
        "draws at the fraction u^exponent of the buffer, oldest first, u uniform; 1 is uniform",
        low=0.01,
        high=100,
    )


@schema("on_policy", group="sampler")
@dataclass
class OnPolicySamplerConfig(SamplerConfig):
    """The actor uses the one of several uniform batches that is closest to its policy."""

    kind: str = key(
        "on_policy", "the candidate batch that is closest to the policy", choices=("on_policy",)
    )
    num_batches: int = key(3, "candidate batches, from which one is chosen", low=1, high=1000)


@schema("own", group="sampler")
@dataclass
class OwnSamplerConfig(SamplerConfig):
    """A sampler of the user's own, named by its import path."""

    kind: str = key("own", "a sampler of your own draws the batch", choices=("own",))
    path: str = key(
        MISSING, "import path of a TorchRL Sampler, set by sampler=my_package.MySampler"
    )
    kwargs: dict[str, Any] = key({}, "arguments of the sampler: sampler.kwargs.alpha=0.5")


@dataclass
class ReplayConfig(Config):
    """The replay buffer, and how the critics' batch is drawn."""

    name: str = key(MISSING, _RUN_NAME)
    kind: str = key(MISSING, "what the recipe does for this choice")
    buffer_size: int = key(1_000_000, "capacity in transitions", low=1)


@schema("uniform", group="replay")
@dataclass
class UniformReplayConfig(ReplayConfig):
    """Uniform replay."""

    kind: str = key("uniform", "uniform replay", choices=("uniform",))


@schema("prioritized", group="replay")
@dataclass
class PrioritizedReplayConfig(ReplayConfig):
    """Prioritized replay: proportional (per) or rank-based (per_rank)."""

    kind: str = key(
        "per", "priorities from TD errors (per) or their ranks", choices=("per", "per_rank")
    )
    alpha: float = key(0.6, "exponent of the priority; 0 is uniform", low=0, high=_LARGEST_EXPONENT)
    beta: float = key(0.4, "exponent of the importance weights; 1 removes the bias", low=0, high=1)


@schema("lap", group="replay")
@dataclass
class LAPReplayConfig(ReplayConfig):
    """Loss-adjusted prioritized replay: prefers TD errors above 1, with the Huber loss."""

    kind: str = key(
        "lap", "priorities max(|TD error|, 1)^alpha, with the Huber loss", choices=("lap",)
    )
    alpha: float = key(0.4, "exponent of the priority; 0 is uniform", low=0, high=_LARGEST_EXPONENT)


@schema("her", group="replay")
@dataclass
class HindsightReplayConfig(ReplayConfig):
    """Uniform replay with hindsight relabeling."""

    kind: str = key("her", "uniform replay with hindsight relabeling", choices=("her",))
    buffer_size: int = 3_000_000
    her_ratio: float = key(0.8, "fraction of a batch whose goals are relabeled", low=0, high=1)
    strategy: str = key(
        "future", "where new goals come from", choices=("future", "final", "episode")
    )
    clip: float = key(5.0, "bound of normalized observations and goals", low=1e-9)


@schema("own", group="replay")
@dataclass
class OwnReplayConfig(ReplayConfig):
    """A sampler of the user's own for the critics, named by its import path."""

    kind: str = key("own", "a sampler of your own draws the batch", choices=("own",))
    path: str = key(MISSING, "import path of a TorchRL Sampler, set by replay=my_package.MySampler")
    kwargs: dict[str, Any] = key({}, "arguments of the sampler: replay.kwargs.alpha=0.5")
