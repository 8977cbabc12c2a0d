"""Stacks of layers as batched matrix products, against the modules."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from helpers.fast_losses import TOLERANCE
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU, nn.GELU])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_network_equals_the_modules(activation, bias):
    torch.manual_seed(0)
    networks = [
        nn.Sequential(
            nn.Linear(4, 8, bias=bias), activation(), nn.Linear(8, 8, bias=bias), activation(),
            nn.Linear(8, 1, bias=bias),
        )
        for _ in range(3)
    ]  # fmt: skip

    params = torch.stack([TensorDict.from_module(n, as_module=False) for n in networks])
    inputs = torch.randn(3, 10, 4)
    expected = torch.stack([n(x) for n, x in zip(networks, inputs, strict=True)])
    torch.testing.assert_close(PlainNetwork(networks[0], params)(inputs), expected, **TOLERANCE)


def test_inputs_are_not_changed_in_place():

    network = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    params = TensorDict.from_module(network, as_module=False)
    inputs = torch.randn(10, 4)
    before = inputs.clone()
    result = PlainNetwork(network, params)(inputs)
    assert torch.equal(inputs, before)
    torch.testing.assert_close(result, network(inputs))


def test_a_network_that_is_not_plain_is_rejected():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    params = TensorDict.from_module(network, as_module=False)
    with pytest.raises(NotPlainError, match="BatchNorm1d"):
        PlainNetwork(network, params)
    assert issubclass(NotPlainError, TypeError)


def test_a_module_that_occurs_twice_is_applied_twice():
    """``named_children`` skips the second occurrence."""
    act = nn.ReLU()
    network = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 1))
    params = TensorDict.from_module(network, as_module=False)
    inputs = torch.randn(10, 4)
    torch.testing.assert_close(PlainNetwork(network, params)(inputs), network(inputs))


def test_networks_with_hooks_are_rejected():
    network = nn.Sequential(nn.Linear(4, 4))
    network[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(NotPlainError, match="hooks"):
        PlainNetwork(network, TensorDict.from_module(network, as_module=False))


def test_networks_that_change_their_inputs_are_rejected():
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    with pytest.raises(NotPlainError, match="changing its inputs"):
        PlainNetwork(network, TensorDict.from_module(network, as_module=False))
