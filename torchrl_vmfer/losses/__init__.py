"""TorchRL's losses that also measure how much the critics agree, without an extra pass."""

from torchrl_vmfer.losses.redq import VMFREDQLoss
from torchrl_vmfer.losses.sac import VMFCQLLoss, VMFCrossQLoss, VMFSACLoss, VMFTQCLoss
from torchrl_vmfer.losses.td3 import VMFTD3BCLoss, VMFTD3Loss

__all__ = [
    "VMFCQLLoss",
    "VMFCrossQLoss",
    "VMFREDQLoss",
    "VMFSACLoss",
    "VMFTD3BCLoss",
    "VMFTD3Loss",
    "VMFTQCLoss",
]
