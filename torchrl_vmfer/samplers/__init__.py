"""TorchRL samplers with one priority per transition."""

from torchrl_vmfer.samplers.rank_prioritized import RankPrioritizedSampler
from torchrl_vmfer.samplers.vmf import VMFSampler

__all__ = ["RankPrioritizedSampler", "VMFSampler"]
