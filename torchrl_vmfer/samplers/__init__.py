"""TorchRL samplers for the actor's and the critics' batches."""

from torchrl_vmfer.samplers.base import effective_sample_size
from torchrl_vmfer.samplers.gradient_norm import GradientNormSampler
from torchrl_vmfer.samplers.mixed import MixedSampler
from torchrl_vmfer.samplers.rank_prioritized import RankPrioritizedSampler
from torchrl_vmfer.samplers.recent import OldSampler, RecentSampler
from torchrl_vmfer.samplers.signal import SignalSampler
from torchrl_vmfer.samplers.td_error import InverseTDSampler, LAPSampler
from torchrl_vmfer.samplers.vmf import VMFSampler

__all__ = [
    "GradientNormSampler",
    "InverseTDSampler",
    "LAPSampler",
    "MixedSampler",
    "OldSampler",
    "RankPrioritizedSampler",
    "RecentSampler",
    "SignalSampler",
    "VMFSampler",
    "effective_sample_size",
]
