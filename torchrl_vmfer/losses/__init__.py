"""TorchRL's losses that also measure how much the critics agree, without an extra pass."""

from torchrl_vmfer.losses.cql import VMFCQLLoss
from torchrl_vmfer.losses.crossq import VMFCrossQLoss
from torchrl_vmfer.losses.redq import VMFREDQLoss
from torchrl_vmfer.losses.sac import VMFSACLoss
from torchrl_vmfer.losses.td3 import VMFTD3BCLoss, VMFTD3Loss
from torchrl_vmfer.losses.tqc import VMFTQCLoss

__all__ = [
    "VMFCQLLoss",
    "VMFCrossQLoss",
    "VMFREDQLoss",
    "VMFSACLoss",
    "VMFTD3BCLoss",
    "VMFTD3Loss",
    "VMFTQCLoss",
]
