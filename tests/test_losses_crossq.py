"""CrossQ, which evaluates current and next states at once and has no target networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.modules import BatchRenorm1d

from helpers.losses import SEED, assert_same, perturb, seeded


class NormalizedNetwork(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 16), layer(16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, *inputs):
        return self.network(torch.cat(inputs, -1))


def squared_errors(loss, brute_force, batch, targets):
    """Computes (Q_i - y)² ``[N, B]`` with y from the first target critics."""
    following = batch["next"].select("observation")
    with torch.no_grad():
        action = brute_force.policy_action(loss, following, seed=SEED)
        with loss.actor_network_params.to_module(loss.actor_network):
            log_prob = loss.actor_network.get_dist(following.copy()).log_prob(action)
        next_values = brute_force.critic_values(loss, following, action)
        next_value = next_values[:targets].min(0).values - loss.log_alpha.exp() * log_prob
        continues = 1 - batch["next", "terminated"].squeeze(-1).float()
        target = batch["next", "reward"].squeeze(-1) + 0.9 * continues * next_value
    return (brute_force.critic_values(loss, batch, batch["action"]) - target).square()


def critic_gradients(loss):
    """Returns the gradient of each critic as one row."""
    params = loss.qvalue_network_params.values(True, True)
    return torch.cat([param.grad.flatten(1) for param in params], 1).clone()


@pytest.mark.parametrize("targets", [1, 2, 4])
def test_the_target_is_the_minimum_over_the_first_critics(crossq, brute_force, make_batch, targets):
    options = {"num_qvalue_nets": 4, "num_target_critics": targets, "loss_function": "l2"}
    loss, batch = crossq.build(**options), make_batch(12)
    errors = squared_errors(loss, brute_force, batch, targets)
    expected = errors.sum(0).mean()
    expected.backward()
    reference = critic_gradients(loss)
    loss.zero_grad()
    value, metadata = seeded(loss.qvalue_loss, batch.clone())
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(critic_gradients(loss), reference, rtol=1e-4, atol=1e-6)
    largest = errors.detach().sqrt().amax(0)
    torch.testing.assert_close(metadata["td_error"], largest, rtol=1e-4, atol=1e-6)


def test_extra_critics_do_not_change_the_gradients_of_the_others(crossq, make_batch):
    loss = crossq.build(num_qvalue_nets=4, num_target_critics=2)

    def gradients():
        loss.zero_grad()
        seeded(loss.qvalue_loss, make_batch(12))[0].backward()
        return critic_gradients(loss)

    before = gradients()
    perturb(loss.qvalue_network_params, [3])
    after = gradients()
    assert torch.equal(after[:3], before[:3])
    assert not torch.isclose(after[3], before[3]).all()
    perturb(loss.qvalue_network_params, [1])
    moved = gradients()
    assert not torch.isclose(moved[0], before[0]).all()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, BatchRenorm1d])
class TestNormalization:
    def build(self, crossq, layer, loss_class=None, **options):
        critic = crossq.critic(network=seeded(NormalizedNetwork, layer))
        return crossq.build(loss_class, critic=critic, num_qvalue_nets=4, **options)

    def statistics(self, loss):
        return {
            key: value.clone()
            for key, value in loss.state_dict().items()
            if "num_" in key or "running" in key
        }

    def test_the_critic_loss_updates_the_statistics_as_torchrls(self, crossq, make_batch, layer):
        stock = self.build(crossq, layer, crossq.stock_class)
        vmf = self.build(crossq, layer, num_target_critics=2)
        before = self.statistics(vmf)
        for seed in (1, 2):
            for loss in (stock, vmf):
                seeded(loss.qvalue_loss, make_batch(12, seed=seed))
        expected, found = self.statistics(stock), self.statistics(vmf)
        assert len(expected) == 3
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
            assert not torch.equal(found[name], before[name]), name

    def test_the_actor_loss_equals_torchrls_and_keeps_the_statistics(
        self, crossq, make_batch, layer
    ):
        stock, vmf = self.build(crossq, layer, crossq.stock_class), self.build(crossq, layer)
        for loss in (stock, vmf):
            seeded(loss.qvalue_loss, make_batch(12, seed=2))
        before = self.statistics(vmf)
        expected, _ = seeded(stock.actor_loss, make_batch(12))
        value, _ = seeded(vmf.actor_loss, make_batch(12))
        assert_same(crossq, value, expected)
        for name, statistic in self.statistics(vmf).items():
            assert torch.equal(statistic, before[name]), name
        assert vmf.qvalue_network.training

    def test_the_factors_equal_brute_force_in_evaluation_mode(
        self, crossq, brute_force, make_batch, layer
    ):
        loss, batch = self.build(crossq, layer), make_batch(12)
        seeded(loss.qvalue_loss, make_batch(12, seed=2))
        _, metadata = seeded(loss.actor_loss, batch.clone())
        loss.qvalue_network.eval()
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action)
        used = brute_force.critic_values(loss, batch, action).argmin(0)
        expected = brute_force.sampling_factor(gradients, used)
        torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)
