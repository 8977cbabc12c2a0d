"""Losses on both paths, and an assertion that they agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator

from torchrl_vmfer import VMFCrossQLoss, VMFREDQLoss, VMFTD3BCLoss, VMFTQCLoss

SEED = 5


TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@dataclass(frozen=True)
class FastLoss:
    """Builds a loss with a fast path, for 5 observations and 3 actions."""

    name: str
    loss_class: type
    critic_loss_name: str = "qvalue_loss"
    outputs: int = 1
    defaults: dict[str, Any] = field(default_factory=lambda: {"target_entropy": -3.0})

    def actor(self, cells, activation):
        if "bounds" in self.defaults:
            network = nn.Sequential(MLP(5, 3, num_cells=cells, activation_class=activation))
            return TensorDictModule(network.append(nn.Tanh()), ["observation"], ["action"])
        network = MLP(5, 6, num_cells=cells, activation_class=activation)
        return ProbabilisticActor(
            TensorDictModule(
                nn.Sequential(network, NormalParamExtractor()), ["observation"], ["loc", "scale"]
            ),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            return_log_prob=True,
        )

    def build(self, *, seed=0, cells=(32, 32), activation=nn.ReLU, critic=None, **options):
        torch.manual_seed(seed)
        actor = self.actor(list(cells), activation)
        if critic is None:
            critic = MLP(8, self.outputs, num_cells=list(cells), activation_class=activation)
        critic = ValueOperator(critic, in_keys=["observation", "action"])
        loss = self.loss_class(actor, critic, **self.defaults | options)
        loss.make_value_estimator(gamma=0.9)
        return loss

    def critic_loss(self, loss, batch):
        return getattr(loss, self.critic_loss_name)(batch)


TD3_BC = FastLoss("td3_bc", VMFTD3BCLoss, defaults={"bounds": (-1.0, 1.0), "alpha": 2.5})
REDQ = FastLoss("redq", VMFREDQLoss)
CROSSQ = FastLoss("crossq", VMFCrossQLoss)
TQC = FastLoss("tqc", VMFTQCLoss, "qvalue_v2_loss", outputs=7)


def gradients(loss, value):
    loss.zero_grad()
    value.backward()
    return {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}


def assert_agree(slow, fast, update):
    """Asserts that both paths give the same loss, metadata, gradients and random state."""
    torch.manual_seed(SEED)
    expected, expected_metadata = update(slow)
    expected_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    value, metadata = update(fast)
    assert torch.equal(torch.get_rng_state(), expected_state)
    torch.testing.assert_close(value, expected, **TOLERANCE)
    assert metadata.keys() == expected_metadata.keys()
    for name, entry in expected_metadata.items():
        if name == "state_action_value_actor" and not fast.measure:
            entry = entry[: len(metadata[name])]  # the others are not evaluated
        torch.testing.assert_close(metadata[name], entry.detach(), **TOLERANCE)
    expected_gradients, found = gradients(slow, expected), gradients(fast, value)
    assert found.keys() == expected_gradients.keys()
    assert found
    for name, gradient in expected_gradients.items():
        # The rounding of a sum over the batch depends on its terms, not on the result.
        difference = (found[name] - gradient).abs().max()
        assert difference <= 1e-5 * gradient.abs().max().clamp(min=1), name


def pair(algorithm, **options):
    """Makes two losses with networks that use most of the optimizations."""
    options = {"activation": nn.ReLU} | options
    slow, fast = (algorithm.build(fast=fast, **options) for fast in (False, True))
    return slow, fast
