"""Batch renormalization against NumPy, alone and as the critics of CrossQ."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from torchrl_vmfer.batch_renorm import BatchRenorm
from torchrl_vmfer.networks import NetworkSpec

MOMENTUM, EPS = 0.2, 1e-3


def layer(warmup: int) -> BatchRenorm:
    made = BatchRenorm(3, warmup=warmup)
    made.momentum, made.eps, made.max_scale, made.max_shift = MOMENTUM, EPS, 1.5, 0.5
    with torch.no_grad():
        made.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
        made.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    return made


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    scales = torch.tensor([0.1, 1.0, 10.0])
    return [torch.randn(16, 3, generator=generator) * scales + i for i in range(count)]


def reference(inputs: list[np.ndarray], warmup: int):
    """Yields the outputs and the running statistics, by the definition of the paper."""
    mean, variance = np.zeros(3), np.ones(3)
    weight, bias = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, -1.0])
    for number, batch in enumerate(inputs):
        deviation, running = np.sqrt(batch.var(0) + EPS), np.sqrt(variance + EPS)
        r, d = 1.0, 0.0
        if number >= warmup:
            r = np.clip(deviation / running, 1 / 1.5, 1.5)
            d = np.clip((batch.mean(0) - mean) / running, -0.5, 0.5)
        output = ((batch - batch.mean(0)) / deviation * r + d) * weight + bias
        mean = (1 - MOMENTUM) * mean + MOMENTUM * batch.mean(0)
        variance = (1 - MOMENTUM) * variance + MOMENTUM * batch.var(0)
        yield output, mean, variance


@pytest.mark.parametrize("warmup", [0, 3])
def test_training_equals_the_definition_during_and_long_after_the_warmup(warmup):
    inputs, renorm = batches(12), layer(warmup)
    expected = reference([batch.double().numpy() for batch in inputs], warmup)
    for batch, (output, mean, variance) in zip(inputs, expected, strict=True):
        np.testing.assert_allclose(renorm(batch).detach(), output, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(renorm.running_mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(renorm.running_var, variance, rtol=1e-4, atol=1e-5)


def test_evaluation_uses_the_running_statistics_and_does_not_change_them():
    renorm = layer(warmup=2)
    for batch in batches(5):
        renorm(batch)
    before = copy.deepcopy(renorm.state_dict())
    renorm.eval()
    (batch,) = batches(1)
    deviation = (renorm.running_var + EPS).sqrt()
    expected = (batch - renorm.running_mean) / deviation * renorm.weight + renorm.bias
    torch.testing.assert_close(renorm(batch), expected)
    assert all(torch.equal(value, before[name]) for name, value in renorm.state_dict().items())


def test_the_correction_has_no_gradient():
    renorm = layer(warmup=0)
    (batch,) = batches(1)
    batch.requires_grad_()
    mean, deviation = batch.mean(0), (batch.var(0, unbiased=False) + EPS).sqrt()
    scale = (deviation / (1 + EPS) ** 0.5).clamp(1 / 1.5, 1.5).detach()
    shift = (mean / (1 + EPS) ** 0.5).clamp(-0.5, 0.5).detach()
    expected = ((batch - mean) / deviation * scale + shift) * renorm.weight + renorm.bias
    weights = torch.arange(48.0).reshape(16, 3)
    (found,) = torch.autograd.grad((renorm(batch) * weights).sum(), batch)
    (reference,) = torch.autograd.grad((expected * weights).sum(), batch)
    torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-4)


def test_an_ensemble_updates_the_statistics_of_each_member_as_if_it_were_alone():
    def network(seed):
        torch.manual_seed(seed)
        return nn.Sequential(BatchRenorm(3, warmup=2), nn.Linear(3, 4), BatchRenorm(4, warmup=2))

    members = [network(seed) for seed in range(3)]
    params, buffers = torch.func.stack_module_state(copy.deepcopy(members))
    base = copy.deepcopy(members[0])
    for batch in batches(5):
        outputs = torch.vmap(
            lambda *state, batch=batch: torch.func.functional_call(base, state, batch)
        )(params, buffers)
        for i, member in enumerate(members):
            torch.testing.assert_close(outputs[i], member(batch), rtol=1e-4, atol=1e-5)
    for i, member in enumerate(members):
        for name, buffer in member.named_buffers():
            torch.testing.assert_close(buffers[name][i], buffer, rtol=1e-4, atol=1e-5)


def test_a_single_row_is_normalized_in_evaluation_mode_only():
    renorm = layer(warmup=0)
    with pytest.raises(ValueError, match=r"got an input of shape \[3\]: add a batch dimension"):
        renorm(torch.zeros(3))
    assert renorm.eval()(torch.zeros(3)).shape == (3,)


NORMALIZED = """
from torch import nn
from torchrl_vmfer.batch_renorm import BatchRenorm

class Normalized(nn.Sequential):
    def __init__(self, in_features, out_features):
        super().__init__(BatchRenorm(in_features), nn.Linear(in_features, out_features))
"""


def test_making_a_custom_network_keeps_its_running_statistics_and_mode(tmp_path, monkeypatch):
    (tmp_path / "my_normalized.py").write_text(NORMALIZED)
    monkeypatch.syspath_prepend(tmp_path)
    network = NetworkSpec("my_normalized.Normalized").make(3, 2)
    assert all(part.training for part in network.modules())
    assert network[0].batches == 0
    assert torch.equal(network[0].running_var, torch.ones(3))
