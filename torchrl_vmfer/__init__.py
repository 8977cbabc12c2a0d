"""vMFER (von Mises-Fisher Experience Resampling): drop-in components for TorchRL."""

from torchrl_vmfer import directional
from torchrl_vmfer.compiled import CompiledUpdates
from torchrl_vmfer.losses import (
    VMFCQLLoss,
    VMFCrossQLoss,
    VMFREDQLoss,
    VMFSACLoss,
    VMFTD3BCLoss,
    VMFTD3Loss,
    VMFTQCLoss,
)
from torchrl_vmfer.policies import Policy
from torchrl_vmfer.policy_files import load_policy, save_policy
from torchrl_vmfer.replay import (
    ActorCriticReplayBuffer,
    CandidatePool,
    HindsightReplayBuffer,
)
from torchrl_vmfer.samplers import (
    GradientNormSampler,
    InverseTDSampler,
    LAPSampler,
    MixedSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
    effective_sample_size,
)
from torchrl_vmfer.uncertainty import VMFUncertainty

__all__ = [
    "ActorCriticReplayBuffer",
    "CandidatePool",
    "CompiledUpdates",
    "GradientNormSampler",
    "HindsightReplayBuffer",
    "InverseTDSampler",
    "LAPSampler",
    "MixedSampler",
    "Policy",
    "RankPrioritizedSampler",
    "RecentSampler",
    "VMFCQLLoss",
    "VMFCrossQLoss",
    "VMFREDQLoss",
    "VMFSACLoss",
    "VMFSampler",
    "VMFTD3BCLoss",
    "VMFTD3Loss",
    "VMFTQCLoss",
    "VMFUncertainty",
    "__version__",
    "directional",
    "effective_sample_size",
    "load_policy",
    "save_policy",
]

__version__ = "0.1.0"
