"""Directions before the squashing, against autograd with respect to the pre-tanh action."""

from __future__ import annotations

import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import Bounded, Unbounded
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, TanhNormal, ValueOperator

from helpers import brute_force
from helpers.losses import SEED, make_batch, seeded
from torchrl_vmfer import VMFSACLoss, VMFTD3Loss, VMFUncertainty

LOW, HIGH = torch.tensor([-2.0, 0.5, -1.0]), torch.tensor([2.0, 1.0, 3.0])


def squashed_actor(kind, scale):
    network = MLP(5, 3 if kind is VMFTD3Loss else 6, num_cells=[16], activation_class=nn.ReLU)
    with torch.no_grad():
        network[-1].weight *= scale
    if kind is VMFTD3Loss:
        return TensorDictModule(
            nn.Sequential(network, nn.Tanh(), Stretch()), ["observation"], ["action"]
        )
    return ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(network, NormalParamExtractor()), ["observation"], ["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": LOW, "high": HIGH},
        return_log_prob=True,
    )


class Stretch(nn.Module):
    def forward(self, squashed):
        return (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * squashed


def build(kind, *, scale=1.0, critics=4, **options):
    torch.manual_seed(0)
    actor = squashed_actor(kind, scale)
    critic = ValueOperator(
        MLP(8, 1, num_cells=[16], activation_class=nn.ReLU), in_keys=["observation", "action"]
    )
    required = {"bounds": (LOW, HIGH)} if kind is VMFTD3Loss else {"target_entropy": -3.0}
    loss = kind(actor, critic, num_qvalue_nets=critics, **required | options)
    loss.make_value_estimator(gamma=0.9)
    return loss


def pre_tanh(loss, batch):
    """Computes the pre-tanh action of an explicit tanh policy."""
    with loss.actor_network_params.to_module(loss.actor_network):
        if isinstance(loss, VMFTD3Loss):
            return loss.actor_network.module[0](batch["observation"]).detach()
        found = loss.actor_network.get_dist_params(batch.copy())
    torch.manual_seed(SEED)
    return torch.normal(torch.zeros_like(found["loc"]), 1.0) * found["scale"] + found["loc"]


def reference(loss, batch):
    """Computes factors, lengths and the norm of the gradient that moves the actor."""
    u = pre_tanh(loss, batch).detach().double().requires_grad_()
    action = Stretch()(u.tanh())
    values = brute_force.critic_values(loss, batch, action.float()).double()
    gradients = torch.stack(
        [torch.autograd.grad(-value.sum(), u, retain_graph=True)[0] for value in values]
    )
    used = 0 if isinstance(loss, VMFTD3Loss) else values[:2].argmin(0)
    factors = brute_force.sampling_factor(
        gradients, brute_force.critic_named(loss.used, values[:2])
    )
    lengths = (gradients / gradients.norm(dim=-1, keepdim=True)).mean(0).norm(dim=-1)
    rows = torch.arange(len(batch))
    return factors, lengths, gradients[used, rows].norm(dim=-1)


@pytest.mark.parametrize("kind", [VMFTD3Loss, VMFSACLoss])
def test_factors_equal_autograd_with_respect_to_the_pre_tanh_action(kind):
    loss = build(kind, directions="pre_tanh", gradient_norm=True)
    batch = make_batch(30)
    factors, lengths, norms = reference(loss, batch)
    _, found = seeded(loss.actor_loss, batch.clone())
    close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    close(found["vmf_factor"].double(), factors)
    close(found["vmf_resultant_length"].double(), lengths)
    close(found["vmf_gradient_norm"].double(), norms)
    measured = seeded(VMFUncertainty(loss), batch.clone())["vmf"]
    close(measured["factor"].double(), factors)
    _, others = seeded(build(kind).actor_loss, batch.clone())
    assert (others["vmf_factor"].double() - factors).abs().max() > 1e-2


@pytest.mark.parametrize("kind", [VMFTD3Loss, VMFSACLoss])
def test_saturated_actions_have_no_pull(kind):
    options = {"directions": "pre_tanh", "gradient_norm": True}
    loss = build(kind, scale=1e4, **options)
    batch = make_batch(40)
    _, metadata = seeded(loss.actor_loss, batch.clone())
    assert (metadata["vmf_gradient_norm"] == 0).float().mean() > 0.9
    saturated = metadata["vmf_gradient_norm"] == 0
    assert (metadata["vmf_factor"][saturated] == 1).all()
    assert (metadata["vmf_resultant_length"][saturated] == 0).all()


def test_every_loss_scales_the_gradients_by_the_squashing(any_algorithm):
    loss, batch = any_algorithm.build(directions="pre_tanh"), make_batch(9)
    value, metadata = seeded(loss.actor_loss, batch.clone())
    assert torch.equal(value, seeded(any_algorithm.build().actor_loss, batch.clone())[0])
    action = brute_force.policy_action(loss, batch, seed=SEED)
    gradients = brute_force.action_gradients(loss, batch, action) * (1 - action.square())
    values = brute_force.critic_values(loss, batch, action)
    values = values[: loss.target_count]
    expected = brute_force.sampling_factor(gradients, brute_force.critic_named(loss.used, values))
    torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)


def test_the_bounds_of_an_action_spec_are_used():
    results = []
    for spec in (Bounded(LOW, HIGH), Bounded(10 * LOW - 5, 10 * HIGH + 5)):
        torch.manual_seed(0)
        loss = VMFSACLoss(
            normal_actor(), critic(), action_spec=spec, directions="pre_tanh", target_entropy=-3.0
        )
        results.append(seeded(loss.actor_loss, make_batch(8))[1]["vmf_factor"])
    assert not torch.allclose(*results)


def normal_actor():
    network = nn.Sequential(MLP(5, 6, num_cells=[8]), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )


def critic():
    return ValueOperator(MLP(8, 1, num_cells=[8]), in_keys=["observation", "action"])


@pytest.mark.parametrize("spec", [None, Unbounded((3,))], ids=["unknown", "unbounded"])
def test_unknown_bounds_are_rejected_at_construction(spec):
    options = {} if spec is None else {"action_spec": spec}
    with pytest.raises(ValueError, match=r"requires the bounds of the action.*pass action_spec="):
        VMFSACLoss(normal_actor(), critic(), directions="pre_tanh", target_entropy=-3.0, **options)


@pytest.mark.parametrize("bounds", [(-torch.inf, 1.0), (0.5, 0.5)])
def test_bounds_that_do_not_bound_are_rejected(td3, bounds):
    with pytest.raises(ValueError, match="finite bounds, got"):
        td3.build(bounds=bounds, directions="pre_tanh")


def test_an_action_beyond_its_bounds_has_no_pull(td3):
    """An actor without a tanh is clipped by the environment."""
    loss = td3.build(bounds=(-1e-3, 1e-3), directions="pre_tanh", gradient_norm=True)
    outside = TensorDict({"observation": 10 * make_batch(20)["observation"]}, [20])
    assert (loss.actor_loss(outside)[1]["vmf_gradient_norm"] == 0).any()
