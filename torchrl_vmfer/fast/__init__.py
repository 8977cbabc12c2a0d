"""Faster versions of some TorchRL components, for plain networks.

Training loops use them through :func:`make_backend`, losses through ``fast=True``.
"""

from torchrl_vmfer.fast.backend import Backend, make_backend
from torchrl_vmfer.fast.known_gradients import backward

__all__ = ["Backend", "backward", "make_backend"]
