"""The one room for speed: what trades TorchRL's generality for speed.

:func:`make_backend` is its door for training loops, ``fast=True`` that of the losses.
"""

from torchrl_vmfer.fast.backend import Backend, make_backend
from torchrl_vmfer.fast.known_gradients import backward
from torchrl_vmfer.fast.updates import FastSAC, FastTD3

__all__ = ["Backend", "FastSAC", "FastTD3", "backward", "make_backend"]
