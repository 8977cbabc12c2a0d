"""REDQ's losses on separate batches, which TorchRL's loss does not have, against plain ones."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.modules.models.exploration import gSDEModule

from helpers import brute_force
from helpers.losses import SEED, gradients, make_batch, perturb, seeded

CRITICS = 5


def drawn(loss, observed):
    """Draws actions of the policy. Returns their log-densities as well."""
    with loss.actor_network_params.to_module(loss.actor_network):
        policy = loss.actor_network.get_dist(observed.copy())
    action = policy.rsample()
    return action, policy.log_prob(action)


def plain_errors(loss, batch, subset_size):
    """Computes Q_i - y ``[N, B]``, with y from the minimum over a random subset of critics."""
    torch.manual_seed(SEED)
    subset = torch.randperm(CRITICS)[:subset_size]
    following = batch["next"].select("observation")
    with torch.no_grad():
        action, log_prob = drawn(loss, following)
        target_params = loss.target_qvalue_network_params
        values = brute_force.critic_values(loss, following, action, target_params)[subset]
        next_value = values.min(0).values - loss.log_alpha.exp() * log_prob
        continues = 1 - batch["next", "terminated"].squeeze(-1).float()
        target = batch["next", "reward"].squeeze(-1) + 0.9 * continues * next_value
    return brute_force.critic_values(loss, batch, batch["action"]) - target


def test_the_actor_loss_and_its_gradient_equal_the_mean_over_all_critics(redq):
    loss, batch = redq.build(), make_batch(12)
    torch.manual_seed(SEED)
    action, log_prob = drawn(loss, batch)
    values = brute_force.critic_values(loss, batch, action, loss.qvalue_network_params.detach())
    expected = (loss.log_alpha.exp().detach() * log_prob - values).mean()
    expected.backward()
    reference = gradients(loss)
    value, metadata = seeded(loss.actor_loss, batch.select("observation"))
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients(loss), reference, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(metadata["log_prob"], log_prob.detach())
    torch.testing.assert_close(metadata["state_action_value_actor"], values.detach())


@pytest.mark.parametrize("subset_size", [1, 2, 4])
def test_the_target_of_the_critics_is_the_minimum_over_a_random_subset(redq, subset_size):
    loss = redq.build(sub_sample_len=subset_size, loss_function="l2")
    perturb(loss.target_qvalue_network_params, slice(None))
    batch = make_batch(12)
    errors = plain_errors(loss, batch, subset_size)
    expected = errors.square().mean()
    expected.backward()
    reference = gradients(loss)
    value, metadata = seeded(loss.qvalue_loss, batch.clone())
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients(loss), reference, rtol=1e-4, atol=1e-6)
    largest = errors.detach().abs().amax(0)
    torch.testing.assert_close(metadata["td_error"], largest, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("log_alpha", "alpha"), [(-0.5, 0.6065307), (5.0, 10.0)])
def test_the_loss_of_the_temperature_moves_it_to_the_target_entropy(redq, log_alpha, alpha):
    loss = redq.build(target_entropy=-3.0, max_alpha=10.0)
    loss.log_alpha.data.fill_(log_alpha)
    log_prob = torch.tensor([1.0, -2.0, 4.5])
    values = loss.alpha_loss(log_prob)
    torch.testing.assert_close(values, -alpha * (log_prob - 3.0))
    values.mean().backward()
    torch.testing.assert_close(loss.log_alpha.grad, -alpha * (log_prob - 3.0).mean())


@pytest.mark.filterwarnings("ignore:.*with reduction='none'")
def test_separate_batches_may_have_masks_two_dimensions_and_no_reduction(redq):
    """The mean of the unreduced losses over unmasked transitions is the reduced loss."""
    batch = make_batch((3, 4))
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) > 0.3
    for method in ("actor_loss", "qvalue_loss"):
        each, _ = seeded(getattr(redq.build(reduction="none"), method), batch.clone())
        assert each.shape == (CRITICS, 3, 4)
        masked = batch.clone().set(("collector", "mask"), mask)
        value, _ = seeded(getattr(redq.build(), method), masked)
        torch.testing.assert_close(value, each[:, mask].mean())


def test_the_factors_of_forward_equal_brute_force(redq):
    loss, batch = redq.build(), make_batch(12)
    losses = seeded(loss, batch.clone())
    torch.manual_seed(SEED)
    torch.randperm(CRITICS)  # forward draws the subset first, then both actions in one call
    both = torch.stack([batch.select("observation"), batch["next"].select("observation")])
    action = drawn(loss, both)[0][0]
    factor = brute_force.sampling_factor(brute_force.action_gradients(loss, batch, action), "mean")
    torch.testing.assert_close(losses["vmf_factor"].double(), factor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["actor_loss", "qvalue_loss"])
def test_gsde_policies_draw_new_noise_instead_of_the_stored_one(redq, method):
    torch.manual_seed(0)
    noisy = TensorDictModule(
        gSDEModule(action_dim=3, state_dim=5),
        ["mean", "observation", "_eps_gSDE"],
        ["loc", "scale", "action", "_eps_gSDE"],
    )
    actor = ProbabilisticActor(
        TensorDictSequential(TensorDictModule(nn.Linear(5, 3), ["observation"], ["mean"]), noisy),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    loss = redq.vmf_class(actor, redq.critic(), gSDE=True, **redq.defaults)
    expected, _ = seeded(getattr(loss, method), make_batch(12))
    stored = make_batch(12)
    for part in (stored, stored["next"]):
        part["_eps_gSDE"] = torch.randn(12, 3, 5)
    value, _ = seeded(getattr(loss, method), stored)
    assert torch.equal(value, expected)
