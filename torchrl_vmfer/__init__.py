"""vMFER (von Mises-Fisher Experience Resampling): drop-in components for TorchRL.

Names are imported when they are first used, so that ``import torchrl_vmfer`` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrl_vmfer import directional as directional
    from torchrl_vmfer.compiled import CompiledUpdates as CompiledUpdates
    from torchrl_vmfer.critics import Critics as Critics
    from torchrl_vmfer.losses import *  # noqa: F403
    from torchrl_vmfer.policies import Policy as Policy
    from torchrl_vmfer.policy_files import load_policy as load_policy
    from torchrl_vmfer.policy_files import save_policy as save_policy
    from torchrl_vmfer.replay import *  # noqa: F403
    from torchrl_vmfer.samplers import *  # noqa: F403
    from torchrl_vmfer.uncertainty import VMFUncertainty as VMFUncertainty

__version__ = "0.1.0"

_MODULES = {
    "compiled": ("CompiledUpdates",),
    "critics": ("Critics",),
    "losses": (
        *("VMFCQLLoss", "VMFCrossQLoss", "VMFREDQLoss", "VMFSACLoss"),
        *("VMFTD3BCLoss", "VMFTD3Loss", "VMFTQCLoss"),
    ),
    "policies": ("Policy",),
    "policy_files": ("load_policy", "save_policy"),
    "replay": (
        *("ActorCriticReplayBuffer", "CandidatePool", "HindsightReplayBuffer"),
        "NStepReplayBuffer",
    ),
    "samplers": (
        *("GradientNormSampler", "InverseTDSampler", "LAPSampler", "MixedSampler"),
        *("OldSampler", "RankPrioritizedSampler", "RecentSampler", "SignalSampler"),
        "VMFSampler",
        "effective_sample_size",
    ),
    "uncertainty": ("VMFUncertainty",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", "directional", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name == "directional":
        return import_module("torchrl_vmfer.directional")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'torchrl_vmfer' has no attribute {name!r}")
    value = getattr(import_module(f"torchrl_vmfer.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
