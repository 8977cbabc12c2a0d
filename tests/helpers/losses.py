"""Losses with a fixed random state, and assertions that they equal TorchRL's."""

from __future__ import annotations

import torch

SEED = 5


def seeded(function, *args):
    """Calls a function with a fixed state of the random generator."""
    torch.manual_seed(SEED)
    return function(*args)


def perturb(params, critics, amount=0.3):
    """Perturbs the parameters of some critics."""
    generator = torch.Generator().manual_seed(9)
    for param in params.values(True, True):
        noise = torch.randn(param.shape, generator=generator)
        param.data[critics] += amount * noise[critics]


def assert_same(algorithm, result, expected):
    """Asserts bitwise equality for TD3, and 1e-6 for SAC, whose batched products differ."""
    if algorithm.name == "td3":
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def used_critic(algorithm, values, targets=2):
    return 0 if algorithm.name == "td3" else values[:targets].argmin(0)
