"""What the actor losses measure, against one ``torch.autograd.grad`` per critic."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from torchrl.modules import MLP

from helpers import brute_force
from helpers.losses import SEED, assert_same, gradients, make_batch, perturb, seeded
from torchrl_vmfer import VMFUncertainty

WORDS = ("first", "min", "mean")
# All but CQL, which always has two critics: with two, e = the first or the second are the same.
MANY = pytest.mark.parametrize("name", ["td3", "sac", "redq", "crossq", "tqc", "td3_bc"])
FIVE = {"num_qvalue_nets": 5, "num_target_critics": None}


def built(request, name, **options):
    """A loss with five critics, which all form the TD target."""
    algorithm = request.getfixturevalue(name)
    five = FIVE if name in ("td3", "sac") else {}
    return algorithm, algorithm.build(**five | options)


def close(found, expected, atol=1e-5):
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


# --- Factors and resultant lengths.


@MANY
def test_factors_and_lengths_equal_brute_force(name, request):
    algorithm, loss = built(request, name)
    batch = make_batch((3, 4))
    _, metadata = seeded(loss.actor_loss, batch.clone())
    found = metadata["vmf_factor"].double()
    assert found.shape == batch.batch_size
    assert not found.requires_grad
    for word in WORDS:
        factors, length = brute_force.factors_and_lengths(loss, batch, word)
        if word == algorithm.used:
            close(found, factors)
        else:
            assert (found - factors).abs().max() > 1e-2, f"{word} gives the same factors."
    close(metadata["vmf_resultant_length"], length)


def test_factors_of_two_critics_in_double_precision_agree_to_1e_12(any_algorithm):
    loss, batch = any_algorithm.build().double(), make_batch(6).double()
    _, metadata = seeded(loss.actor_loss, batch.clone())
    assert metadata["vmf_factor"].dtype == torch.float64
    expected, _ = brute_force.factors_and_lengths(loss, batch, any_algorithm.used)
    close(metadata["vmf_factor"], expected, atol=1e-12)


@MANY
def test_a_chosen_critic_changes_the_factors_and_not_the_loss(name, request):
    expected_loss, _ = seeded(built(request, name)[1].actor_loss, make_batch(12))
    for word in WORDS:
        _, loss = built(request, name, used=word)
        value, metadata = seeded(loss.actor_loss, make_batch(12))
        assert torch.equal(value, expected_loss)
        expected, _ = brute_force.factors_and_lengths(loss, make_batch(12), word)
        close(metadata["vmf_factor"], expected)
        close(seeded(VMFUncertainty(loss), make_batch(12))["vmf", "factor"], expected)


def test_factors_are_e_for_a_single_critic(algorithm):
    with pytest.warns(UserWarning, match="one critic"):
        loss = algorithm.build(num_qvalue_nets=1)
    _, metadata = loss.actor_loss(make_batch(6))
    torch.testing.assert_close(metadata["vmf_factor"], torch.full((6,), math.e))


def test_factors_do_not_depend_on_grad_mode_or_a_rebuild_of_the_critics(any_algorithm):
    loss = any_algorithm.build()
    expected_loss, expected = seeded(loss.actor_loss, make_batch(6))
    with torch.no_grad():
        value, metadata = seeded(loss.actor_loss, make_batch(6))
    assert not value.requires_grad
    torch.testing.assert_close(value, expected_loss.detach())
    torch.testing.assert_close(metadata["vmf_factor"], expected["vmf_factor"])
    loss.set_vmap_randomness("different")
    _, metadata = seeded(loss.actor_loss, make_batch(6))
    torch.testing.assert_close(metadata["vmf_factor"], expected["vmf_factor"])


def test_factors_follow_the_parameters_and_are_one_without_a_gradient(any_algorithm):
    loss = any_algorithm.build()
    _, before = seeded(loss.actor_loss, make_batch(6))
    perturb(loss.qvalue_network_params, [1])
    _, after = seeded(loss.actor_loss, make_batch(6))
    assert (before["vmf_factor"] != after["vmf_factor"]).all()
    unusable = make_batch(6)
    unusable["observation"][2] = math.nan
    _, metadata = seeded(loss.actor_loss, unusable)
    assert metadata["vmf_factor"][2] == 1
    torch.testing.assert_close(metadata["vmf_factor"][:2], after["vmf_factor"][:2])
    for param in loss.qvalue_network_params.values(True, True):
        param.data.zero_()  # the critics ignore the action
    _, metadata = loss.actor_loss(make_batch(6))
    assert (metadata["vmf_factor"] == 1).all()
    assert (metadata["vmf_resultant_length"] == 0).all()


# --- Terms that are common to all critics.


@pytest.mark.parametrize("log_alpha", [-4.6, 0.0])
def test_with_the_entropy_gradient_factors_equal_brute_force(sac, log_alpha):
    loss, batch = sac.build(**FIVE, entropy_gradient=True), make_batch(20)
    loss.log_alpha.data.fill_(log_alpha)
    value, metadata = seeded(loss.actor_loss, batch.clone())
    expected, _ = brute_force.factors_and_lengths(loss, batch, "min", entropy=True)
    close(metadata["vmf_factor"], expected)
    assert (expected - brute_force.factors_and_lengths(loss, batch, "min")[0]).abs().max() > 1e-3
    plain = sac.build(**FIVE)
    plain.log_alpha.data.fill_(log_alpha)
    assert_same(sac, value, seeded(plain.actor_loss, batch.clone())[0])


@pytest.mark.parametrize("name", ["sac", "redq", "crossq", "tqc", "cql"])
def test_the_entropy_does_not_affect_the_factors(name, request):
    algorithm = request.getfixturevalue(name)
    (small, factors), (large, other_factors) = (
        seeded(algorithm.build(alpha_init=alpha).actor_loss, make_batch(7)) for alpha in (0.2, 9.0)
    )
    assert not torch.isclose(small, large)
    assert torch.equal(factors["vmf_factor"], other_factors["vmf_factor"])


def test_behavior_cloning_does_not_affect_the_factors(td3_bc):
    batch = make_batch(7)
    other = batch.clone().set("action", -batch["action"])
    (value, factors), (moved, other_factors) = map(td3_bc.build().actor_loss, (batch, other))
    assert not torch.isclose(value, moved)
    assert torch.equal(factors["vmf_factor"], other_factors["vmf_factor"])


class ScaledQuantiles(nn.Module):
    """A critic of TQC whose quantiles are ``scale`` times as far from their mean."""

    def __init__(self, scale):
        super().__init__()
        self.network = MLP(in_features=8, out_features=6, num_cells=[16])
        self.scale = scale

    def forward(self, *inputs):
        quantiles = self.network(*inputs)
        mean = quantiles.mean(-1, keepdim=True)
        return mean + self.scale * (quantiles - mean)


def test_the_spread_of_quantiles_does_not_affect_the_factors_of_tqc(tqc):
    critic_losses, factors = [], []
    for scale in (1.0, 5.0):
        loss = tqc.build(critic=tqc.critic(network=seeded(ScaledQuantiles, scale)))
        critic_losses.append(seeded(loss.qvalue_v2_loss, make_batch(7))[0])
        factors.append(seeded(loss.actor_loss, make_batch(7))[1]["vmf_factor"])
    assert not torch.isclose(*critic_losses, rtol=0.1)
    torch.testing.assert_close(*factors, rtol=0, atol=1e-5)


# --- Critics beyond those of the TD target.


@pytest.mark.parametrize("name", ["td3", "sac", "crossq", "td3_bc", "cql"])
def test_extra_critics_change_the_factors_but_not_the_actors_loss(name, request):
    algorithm = dataclasses.replace(request.getfixturevalue(name), own_defaults={})
    targets = 1 if name == "cql" else 2
    critics = {} if name == "cql" else {"num_qvalue_nets": 5}
    loss = algorithm.build(num_target_critics=targets, **critics)
    results = []
    for _ in range(2):
        value, metadata = seeded(loss.actor_loss, make_batch(40))
        value.backward()
        results.append((value, gradients(loss), metadata["vmf_factor"]))
        perturb(loss.qvalue_network_params, slice(targets, None), amount=3)
    torch.testing.assert_close(results[1][:2], results[0][:2], rtol=1e-6, atol=1e-8)
    assert (results[1][-1] - results[0][-1]).abs().max() > 1e-2


# --- The norm of the gradient that moves the actor.


def expected_norms(loss, batch, used):
    action = brute_force.policy_action(loss, batch, seed=SEED).detach().requires_grad_()
    values = brute_force.critic_values(loss, batch, action)[: loss.target_count]
    moved = {"first": values[0], "min": values.amin(0), "mean": values.mean(0)}
    (gradient,) = torch.autograd.grad(moved[used].sum(), action)
    return gradient.norm(dim=-1)


@pytest.mark.parametrize("measure", [False, True])
def test_the_gradient_norm_is_that_of_what_the_actor_maximizes(any_algorithm, measure):
    loss = any_algorithm.build(gradient_norm=True, measure=measure)
    batch = make_batch((3, 4))
    value, metadata = seeded(loss.actor_loss, batch.clone())
    expected = expected_norms(loss, batch, any_algorithm.used)
    found = metadata["vmf_gradient_norm"]
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert ("vmf_factor" in metadata) == measure
    plain, without = seeded(any_algorithm.build(measure=measure).actor_loss, batch.clone())
    torch.testing.assert_close(value, plain, rtol=1e-6, atol=1e-6)
    assert "vmf_gradient_norm" not in without
    losses = seeded(loss, batch)
    assert torch.equal(batch["vmf_gradient_norm"], losses["vmf_gradient_norm"])
    assert ("vmf_factor" in set(batch.keys())) == ("vmf_factor" in loss.out_keys) == measure


@pytest.mark.parametrize("options", [{"objective": "mean"}, {"used": "min"}], ids=str)
def test_the_gradient_norm_depends_on_the_objective_and_not_on_the_critic_of_the_factors(
    td3, options
):
    loss = td3.build(gradient_norm=True, num_qvalue_nets=4, **options)
    expected = expected_norms(loss, make_batch(9), options.get("objective", "first"))
    found = loss.actor_loss(make_batch(9))[1]["vmf_gradient_norm"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


# --- TD3's actor on the mean of its critics.


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(("critics", "targets"), [(2, 2), (4, 2), (4, None)])
def test_with_the_mean_as_objective_td3s_actor_climbs_the_mean_of_the_target_critics(
    td3, critics, targets, measure
):
    options = {"num_qvalue_nets": critics, "num_target_critics": targets, "measure": measure}
    loss = td3.build(objective="mean", activation=nn.ReLU, **options)
    batch = make_batch(30)
    action = brute_force.policy_action(loss, batch)
    values = brute_force.critic_values(loss, batch, action)
    expected = -values[:targets].mean()
    expected.backward()
    expected_gradients = gradients(loss, "actor")
    value, metadata = loss.actor_loss(batch.clone())
    value.backward()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradients(loss), expected_gradients, rtol=1e-5, atol=1e-6)
    rows = metadata["state_action_value_actor"]
    torch.testing.assert_close(rows, values[: len(rows)].detach(), rtol=1e-5, atol=1e-5)
    assert ("vmf_factor" in metadata) == measure
    critic_losses = [
        seeded(each.value_loss, batch)[0]
        for each in (loss, td3.build(objective="first", activation=nn.ReLU, **options))
    ]
    assert torch.equal(*critic_losses)
    if not measure:
        return
    assert loss.used == "mean"
    by_critic = brute_force.action_gradients(loss, batch, action).double()
    directions = by_critic / by_critic.norm(dim=-1, keepdim=True)
    mean = by_critic[:targets].sum(0)
    factors = ((directions.mean(0) * mean).sum(-1) / mean.norm(dim=-1)).exp()
    close(metadata["vmf_factor"], factors)
    close(VMFUncertainty(loss)(batch.clone())["vmf", "factor"], factors)


# --- Noise on the actions of TD3's actor.


@pytest.mark.parametrize(("scale", "clip"), [(0.2, 0.5), (2.0, 0.7)])
def test_with_noise_the_critics_are_evaluated_at_the_noisy_action(td3, scale, clip):
    loss = td3.build(num_qvalue_nets=5, actor_noise=scale, actor_noise_clip=clip)
    batch = make_batch(50)
    action = brute_force.policy_action(loss, batch)
    torch.manual_seed(SEED)
    noise = (torch.randn_like(action) * scale).clamp(-clip, clip)
    noisy = (action + noise).clamp(-1, 1).detach()
    if scale == 2.0:
        # Both the clip and the bounds must be active, otherwise the case would test nothing.
        assert (noisy.abs() == 1).any()
        assert torch.isclose((noisy - action).abs(), torch.tensor(clip)).any()
    by_critic = brute_force.action_gradients(loss, batch, noisy)
    (action * by_critic[0]).sum(-1).mean().backward()
    expected_gradients = gradients(loss, "actor")
    value, metadata = seeded(loss.actor_loss, batch.clone())
    value.backward()
    torch.testing.assert_close(value, -brute_force.critic_values(loss, batch, noisy)[0].mean())
    close(metadata["vmf_factor"], brute_force.sampling_factor(by_critic, 0))
    torch.testing.assert_close(gradients(loss), expected_gradients, rtol=1e-4, atol=1e-7)
    stock = td3.build(td3.stock_class, num_qvalue_nets=5)
    noisy_loss = td3.build(num_target_critics=None, num_qvalue_nets=5, actor_noise=scale)
    critic_losses = [seeded(each.value_loss, batch.clone())[0] for each in (stock, noisy_loss)]
    assert torch.equal(*critic_losses)
