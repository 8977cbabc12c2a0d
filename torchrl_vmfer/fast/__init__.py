"""The one room for speed: what trades TorchRL's generality for speed.

:func:`make_backend` is its door for training loops, ``fast=True`` that of the losses.
"""

from torchrl_vmfer.fast.backend import Backend, make_backend
from torchrl_vmfer.fast.known_gradients import backward

__all__ = ["Backend", "backward", "make_backend"]
