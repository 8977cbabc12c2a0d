"""Losses at a fixed state of the random generator, and how close to TorchRL's they must be."""

from __future__ import annotations

import torch

SEED = 5


def seeded(function, *args):
    """Calls the function at a fixed state of the random generator."""
    torch.manual_seed(SEED)
    return function(*args)


def perturb(params, critics, amount=0.3):
    """Moves the parameters of some critics away from where they are."""
    generator = torch.Generator().manual_seed(9)
    for param in params.values(True, True):
        noise = torch.randn(param.shape, generator=generator)
        param.data[critics] += amount * noise[critics]


def assert_same(algorithm, result, expected):
    """Bit for bit for TD3; SAC asks its critics in another batched product, hence 1e-6."""
    if algorithm.name == "td3":
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def used_critic(algorithm, values, targets=2):
    return 0 if algorithm.name == "td3" else values[:targets].argmin(0)
