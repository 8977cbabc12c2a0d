"""The sampling factors of the losses against one ``torch.autograd.grad`` per critic."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.losses import SEED, assert_same, perturb, seeded, used_critic


class TestFactors:
    @pytest.mark.parametrize("critics", [1, 2, 5])
    @pytest.mark.parametrize("size", [7, (3, 4)])
    def test_equal_brute_force(self, algorithm, brute_force, make_batch, critics, size):
        loss = algorithm.build(num_qvalue_nets=critics)
        batch = make_batch(size)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action)
        used = used_critic(algorithm, brute_force.critic_values(loss, batch, action))
        expected = brute_force.sampling_factor(gradients, used)
        factor = metadata["vmf_factor"]
        assert factor.shape == batch.batch_size
        assert not factor.requires_grad
        torch.testing.assert_close(factor.double(), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("alpha", [0.01, 1.0])
    def test_with_the_entropy_gradient_equal_brute_force(
        self, sac, brute_force, make_batch, critics, alpha
    ):
        loss = sac.build(num_qvalue_nets=critics, entropy_gradient=True, alpha_init=alpha)
        batch = make_batch(20)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED)
        used = brute_force.critic_values(loss, batch, action)[:2].argmin(0)
        with_entropy = brute_force.action_gradients(loss, batch, action, entropy=True)
        expected = brute_force.sampling_factor(with_entropy, used)
        torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)
        without = brute_force.action_gradients(loss, batch, action)
        assert (expected - brute_force.sampling_factor(without, used)).abs().max() > 1e-3

    def test_with_the_entropy_gradient_do_not_change_the_loss(self, sac, make_batch):
        stock, vmf = sac.pair(entropy_gradient=True)
        batch = make_batch(20)
        expected, _ = seeded(stock.actor_loss, batch.clone())
        result, _ = seeded(vmf.actor_loss, batch.clone())
        assert_same(sac, result, expected)

    def test_the_entropy_gradient_depends_on_the_temperature(self, sac, brute_force, make_batch):
        loss = sac.build(entropy_gradient=True)
        loss.log_alpha.data.fill_(-1.5)
        batch = make_batch(9)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action, entropy=True)
        used = brute_force.critic_values(loss, batch, action).argmin(0)
        expected = brute_force.sampling_factor(gradients, used)
        torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)

    def test_resultant_length_equals_brute_force(self, algorithm, brute_force, make_batch):
        loss = algorithm.build(num_qvalue_nets=5)
        batch = make_batch(8)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action)
        expected = (gradients / gradients.norm(dim=-1, keepdim=True)).mean(0).norm(dim=-1)
        length = metadata["vmf_resultant_length"]
        torch.testing.assert_close(length, expected, rtol=0, atol=1e-5)

    def test_of_sac_use_the_critic_with_the_lowest_value(self, sac, brute_force, make_batch):
        loss = sac.build(num_qvalue_nets=5, num_target_critics=5)
        batch = make_batch(40)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED)
        used = brute_force.critic_values(loss, batch, action).argmin(0)
        assert len(used.unique()) > 1
        gradients = brute_force.action_gradients(loss, batch, action)
        expected = brute_force.sampling_factor(gradients, used)
        torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)

    def test_are_e_for_a_single_critic(self, algorithm, make_batch):
        _, metadata = algorithm.build(num_qvalue_nets=1).actor_loss(make_batch(6))
        torch.testing.assert_close(metadata["vmf_factor"], torch.full((6,), math.e))

    def test_are_the_same_under_no_grad(self, any_algorithm, make_batch):
        loss = any_algorithm.build()
        batch = make_batch(6)
        expected_loss, expected = seeded(loss.actor_loss, batch.clone())
        with torch.no_grad():
            value, metadata = seeded(loss.actor_loss, batch.clone())
        assert not value.requires_grad
        torch.testing.assert_close(value, expected_loss.detach())
        torch.testing.assert_close(metadata["vmf_factor"], expected["vmf_factor"])

    def test_use_the_current_parameters(self, any_algorithm, make_batch):
        loss = any_algorithm.build()
        batch = make_batch(6)
        _, before = seeded(loss.actor_loss, batch.clone())
        perturb(loss.qvalue_network_params, [1])
        _, after = seeded(loss.actor_loss, batch.clone())
        assert (before["vmf_factor"] != after["vmf_factor"]).all()

    def test_of_a_critic_that_ignores_the_action_are_one(self, any_algorithm, make_batch):
        loss = any_algorithm.build()
        for param in loss.qvalue_network_params.values(True, True):
            param.data.zero_()
        _, metadata = loss.actor_loss(make_batch(6))
        torch.testing.assert_close(metadata["vmf_factor"], torch.ones(6), rtol=0, atol=0)
        assert (metadata["vmf_resultant_length"] == 0).all()

    def test_survive_a_rebuild_of_the_vmapped_critics(self, any_algorithm, make_batch):
        loss = any_algorithm.build()
        batch = make_batch(6)
        _, expected = seeded(loss.actor_loss, batch.clone())
        loss.set_vmap_randomness("different")
        _, metadata = seeded(loss.actor_loss, batch.clone())
        torch.testing.assert_close(metadata["vmf_factor"], expected["vmf_factor"])

    def test_in_double_precision(self, algorithm, brute_force, make_batch):
        loss = algorithm.build(num_qvalue_nets=3).double()
        batch = make_batch(6).double()
        _, metadata = seeded(loss.actor_loss, batch.clone())
        assert metadata["vmf_factor"].dtype == torch.float64
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action)
        used = used_critic(algorithm, brute_force.critic_values(loss, batch, action))
        expected = brute_force.sampling_factor(gradients, used)
        torch.testing.assert_close(metadata["vmf_factor"], expected, rtol=0, atol=1e-12)
