"""The one room for speed: what trades TorchRL's generality for speed."""

from torchrl_vmfer.fast.adam import adam
from torchrl_vmfer.fast.known_gradients import backward
from torchrl_vmfer.fast.storage import RowStorage, RowWriter
from torchrl_vmfer.fast.updates import FastSAC, FastSoftUpdate, FastTD3

__all__ = ["FastSAC", "FastSoftUpdate", "FastTD3", "RowStorage", "RowWriter", "adam", "backward"]
