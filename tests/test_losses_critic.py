"""The critic loss against TorchRL's and a manual one, and critics beyond the second."""

from __future__ import annotations

import pytest
import torch
from torchrl.modules import MLP, ValueOperator

from helpers.losses import SEED, perturb, seeded


class TestCriticLoss:
    @pytest.mark.parametrize("critics", [2, 5])
    def test_is_bitwise_equal_to_the_parents(self, algorithm, make_batch, gradients_of, critics):
        stock, vmf = algorithm.pair(num_qvalue_nets=critics, num_target_critics=critics)
        batch = make_batch(64)
        expected, stock_metadata = seeded(algorithm.critic_loss, stock, batch.clone())
        value, metadata = seeded(algorithm.critic_loss, vmf, batch.clone())
        assert torch.equal(value, expected)
        assert torch.equal(metadata["td_error"], stock_metadata["td_error"])
        value.backward()
        expected.backward()
        for gradient, reference in zip(
            gradients_of(vmf.qvalue_network_params),
            gradients_of(stock.qvalue_network_params),
            strict=True,
        ):
            assert torch.equal(gradient, reference)

    def test_of_sac_with_a_value_network_equals_the_parents(self, sac, make_batch):
        results = []
        for loss_class in (sac.stock_class, sac.vmf_class):
            network = seeded(lambda: MLP(in_features=5, out_features=1, num_cells=[16]))
            value_network = ValueOperator(network, in_keys=["observation"])
            loss = sac.build(loss_class, value_network=value_network)
            batch = make_batch(20)
            critic_loss = getattr(loss, "critic_loss", loss.qvalue_v1_loss)  # TorchRL has no alias
            results.append([seeded(method, batch)[0] for method in (critic_loss, loss.value_loss)])
        for result, expected in zip(*results, strict=True):
            assert torch.equal(result, expected)

    def test_forms_its_target_from_two_critics_by_default(self, algorithm, make_batch):
        batch = make_batch(64)
        default, explicit, all_critics = (
            seeded(algorithm.critic_loss, algorithm.build(num_qvalue_nets=5, **options), batch)[0]
            for options in ({}, {"num_target_critics": 2}, {"num_target_critics": 5})
        )
        assert torch.equal(default, explicit)
        assert not torch.isclose(default, all_critics)

    def squared_errors(self, algorithm, brute_force, loss, batch, targets):
        """Computes Σ_i (Q_i - y)² with y from the first target critics."""
        following = batch["next"].select("observation")
        if algorithm.name == "td3":
            torch.manual_seed(SEED)
            noise = (torch.randn_like(batch["action"]) * 0.2).clamp(-0.5, 0.5)
            target_actor = loss.target_actor_network_params
            action = brute_force.policy_action(loss, following, params=target_actor)
            action, bonus = (action + noise).clamp(-1, 1), 0
        else:
            action = brute_force.policy_action(loss, following, seed=SEED)
            with loss.actor_network_params.to_module(loss.actor_network):
                log_prob = loss.actor_network.get_dist(following.copy()).log_prob(action)
            bonus = -loss.log_alpha.exp() * log_prob
        target_critics = loss.target_qvalue_network_params[:targets]
        values = brute_force.critic_values(loss, following, action, target_critics)
        continues = 1 - batch["next", "terminated"].squeeze(-1).float()
        reward = batch["next", "reward"].squeeze(-1)
        target = reward + 0.9 * continues * (values.min(0).values + bonus)
        predictions = brute_force.critic_values(loss, batch, batch["action"])
        return (predictions - target.detach()).square()

    @pytest.mark.parametrize("delay_qvalue", [True, False])
    @pytest.mark.parametrize("targets", [1, 2, 3])
    @pytest.mark.filterwarnings("ignore:SACLoss with reduction='none'")
    def test_takes_the_minimum_over_the_first_target_critics(
        self, algorithm, brute_force, make_batch, targets, delay_qvalue
    ):
        loss = algorithm.build(
            num_qvalue_nets=5,
            num_target_critics=targets,
            delay_qvalue=delay_qvalue,
            reduction="none",
            loss_function="l2",
        )
        if delay_qvalue:
            perturb(loss.target_qvalue_network_params, slice(None))
        batch = make_batch(40)
        expected = self.squared_errors(algorithm, brute_force, loss, batch, targets).sum(0)
        value, _ = seeded(algorithm.critic_loss, loss, batch.clone())
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)

    def test_gives_every_critic_its_own_td_gradient(
        self, algorithm, brute_force, make_batch, gradients_of
    ):
        loss = algorithm.build(num_qvalue_nets=5, loss_function="l2")
        batch = make_batch(40)
        errors = self.squared_errors(algorithm, brute_force, loss, batch, targets=2)
        errors.sum(0).mean().backward()
        expected = [gradient.clone() for gradient in gradients_of(loss.qvalue_network_params)]
        loss.zero_grad()
        value, _ = seeded(algorithm.critic_loss, loss, batch.clone())
        value.backward()
        for gradient, reference in zip(
            gradients_of(loss.qvalue_network_params), expected, strict=True
        ):
            assert (reference.flatten(1).abs().sum(1) > 0).all()
            torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-5)


class TestExtraCritics:
    def test_do_not_change_the_target(self, algorithm, make_batch):
        loss = algorithm.build(num_qvalue_nets=5)
        batch = make_batch(40)
        before, _ = seeded(algorithm.critic_loss, loss, batch.clone())
        perturb(loss.target_qvalue_network_params, slice(2, None))
        after, _ = seeded(algorithm.critic_loss, loss, batch.clone())
        assert torch.equal(before, after)
        perturb(loss.target_qvalue_network_params, slice(1, 2))
        moved, _ = seeded(algorithm.critic_loss, loss, batch.clone())
        assert not torch.isclose(moved, before)

    def test_change_the_factors_but_not_the_actors_loss(self, algorithm, make_batch, gradients_of):
        loss = algorithm.build(num_qvalue_nets=5)
        batch = make_batch(40)
        before, factors = seeded(loss.actor_loss, batch.clone())
        before.backward()
        gradients = [gradient.clone() for gradient in gradients_of(loss.actor_network_params)]
        loss.zero_grad()
        perturb(loss.qvalue_network_params, slice(2, None), amount=3)
        after, other_factors = seeded(loss.actor_loss, batch.clone())
        after.backward()
        assert torch.equal(before, after)
        for gradient, reference in zip(
            gradients_of(loss.actor_network_params), gradients, strict=True
        ):
            torch.testing.assert_close(gradient, reference, rtol=1e-6, atol=1e-8)
        assert (factors["vmf_factor"] - other_factors["vmf_factor"]).abs().max() > 1e-2
