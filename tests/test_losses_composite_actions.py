"""TensorDict actions, whose direction is that of all parts concatenated."""

from __future__ import annotations

import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution, NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss

from helpers import brute_force
from helpers.losses import gradients, make_batch, seeded
from torchrl_vmfer import VMFSACLoss, VMFUncertainty

SIZES = {"turn": 2, "grip": 1, "arm": 3}


class Heads(nn.Module):
    """Mean and deviation of each part of the action."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(MLP(5, 2 * size, num_cells=[8]), NormalParamExtractor())
            for size in SIZES.values()
        )

    def forward(self, observation):
        return tuple(output for head in self.heads for output in head(observation))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = MLP(5 + sum(SIZES.values()), 1, num_cells=[16])

    def forward(self, observation, action):
        return self.network(observation, *(action[name] for name in SIZES))


def build(loss_class=VMFSACLoss, **options):
    torch.manual_seed(0)
    parameters = [("params", name, each) for name in SIZES for each in ("loc", "scale")]
    actor = ProbabilisticActor(
        TensorDictModule(Heads(), ["observation"], parameters),
        in_keys=["params"],
        out_keys=["action"],
        distribution_class=functools.partial(
            CompositeDistribution, distribution_map=dict.fromkeys(SIZES, TanhNormal)
        ),
    )
    critic = ValueOperator(Critic(), in_keys=["observation", "action"])
    loss = loss_class(
        actor, critic, num_qvalue_nets=3, target_entropy=-3.0, alpha_init=0.3, **options
    )
    loss.make_value_estimator(gamma=0.9)
    return loss


@pytest.fixture
def batch():
    batch = make_batch(12)
    parts = batch["action"].repeat(1, 2).split(list(SIZES.values()), -1)
    return batch.set("action", TensorDict(dict(zip(SIZES, parts, strict=True)), [12]))


def brute_force_gradients(loss, batch, entropy=False):
    """Calls ``torch.autograd.grad`` once per critic, with the parts in alphabetical order."""
    with loss.actor_network_params.to_module(loss.actor_network):
        policy = loss.actor_network.get_dist(batch.select("observation"))
    action = seeded(policy.rsample).detach().apply(lambda part: part.requires_grad_())
    values, gradients = [], []
    for i in range(3):
        with loss.qvalue_network_params[i].to_module(loss.qvalue_network):
            inputs = batch.select("observation").set("action", action)
            value = loss.qvalue_network(inputs)["state_action_value"].squeeze(-1)
        log_prob = sum(policy.dists[name].log_prob(action[name]) for name in SIZES)
        l_i = loss.log_alpha.exp().detach() * log_prob - value if entropy else -value
        found = torch.autograd.grad(l_i.sum(), [action[name] for name in sorted(SIZES)])
        values.append(value.detach())
        gradients.append(torch.cat(found, -1))
    return torch.stack(values), torch.stack(gradients)


@pytest.mark.parametrize("entropy", [False, True])
def test_factors_equal_brute_force(batch, entropy):
    loss = build(entropy_gradient=entropy)
    _, metadata = seeded(loss.actor_loss, batch.clone())
    values, gradients = brute_force_gradients(loss, batch, entropy)
    assert gradients.shape == (3, 12, 6)
    expected = brute_force.sampling_factor(gradients, values[:2].argmin(0))
    assert expected.std() > 1e-3
    torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)
    if not entropy:
        measured = seeded(VMFUncertainty(loss), batch.clone())["vmf"]
        torch.testing.assert_close(measured["factor"].double(), expected, rtol=0, atol=1e-5)
        assert measured["mean_direction"].shape == (12, 6)


def test_losses_and_gradients_equal_torchrls(batch):
    results = []
    for loss in (build(SACLoss), build(num_target_critics=None)):
        losses = seeded(loss, batch.clone())
        (losses["loss_actor"] + losses["loss_qvalue"]).backward()
        results.append((losses["loss_actor"], losses["loss_qvalue"], gradients(loss)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
