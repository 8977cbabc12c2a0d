"""Computations that do not affect the random numbers of training."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

__all__ = ["unchanged_random_numbers"]


def unchanged_random_numbers(device: torch.device | str) -> AbstractContextManager[None]:
    """A context after which PyTorch continues with the random numbers from before it.

    Args:
        device: the device of the networks. Other GPUs are left alone: saving their random state
            would initialize them.
    """
    device = torch.device(device)
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])
