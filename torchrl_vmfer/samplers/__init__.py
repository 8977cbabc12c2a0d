"""TorchRL samplers whose probabilities follow a key per transition."""

from torchrl_vmfer.samplers.rank_prioritized import RankPrioritizedSampler
from torchrl_vmfer.samplers.vmf import VMFSampler

__all__ = ["RankPrioritizedSampler", "VMFSampler"]
