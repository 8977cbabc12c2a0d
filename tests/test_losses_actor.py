"""The actor's loss and its gradient against TorchRL's, and noise on the actor's actions."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.modules import MLP

from helpers.losses import SEED, assert_same, seeded


class TestActorLoss:
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("size", [7, 100, 256])
    def test_of_td3_and_its_gradient_are_bitwise_equal_to_torchrls(
        self, td3, make_batch, gradients_of, size, critics, reduction
    ):
        pair = td3.pair(num_qvalue_nets=critics, reduction=reduction, cells=(64, 64))
        batch = make_batch(size)
        results = []
        for loss in pair:
            value, metadata = loss.actor_loss(batch.clone())
            value.sum().backward()
            results.append((value, metadata, gradients_of(loss.actor_network_params)))
        (expected, stock_metadata, gradients), (value, metadata, vmf_gradients) = results
        assert torch.equal(value, expected)
        key = "state_action_value_actor"
        assert torch.equal(metadata[key], stock_metadata[key])
        for gradient, reference in zip(vmf_gradients, gradients, strict=True):
            assert reference.abs().sum() > 0
            assert torch.equal(gradient, reference)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("size", [7, 256])
    @pytest.mark.filterwarnings("ignore:SACLoss with reduction='none'")
    def test_of_sac_and_its_gradient_equal_torchrls_to_1e_6(
        self, sac, make_batch, gradients_of, size, critics, reduction
    ):
        stock, vmf = sac.pair(
            num_qvalue_nets=critics,
            num_target_critics=critics,
            reduction=reduction,
            cells=(64, 64),
        )
        batch = make_batch(size)
        expected, stock_metadata = seeded(stock.actor_loss, batch.clone())
        value, metadata = seeded(vmf.actor_loss, batch.clone())
        assert_same(sac, value, expected)
        assert torch.equal(metadata["log_prob"], stock_metadata["log_prob"])
        value.sum().backward()
        expected.sum().backward()
        for gradient, reference in zip(
            gradients_of(vmf.actor_network_params),
            gradients_of(stock.actor_network_params),
            strict=True,
        ):
            scale = reference.abs().max().clamp(min=1).item()
            torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-6 * scale)

    def test_writes_the_same_entries_into_the_batch(self, algorithm, make_batch):
        kept = []
        for loss in algorithm.pair(num_qvalue_nets=3):
            batch = make_batch(6)
            loss.actor_loss(batch)
            kept.append(set(batch.keys(True, True)))
        assert kept[0] == kept[1]

    def test_propagates_no_gradient_to_the_critics(self, algorithm, make_batch, gradients_of):
        loss = algorithm.build(num_qvalue_nets=3)
        value, _ = loss.actor_loss(make_batch(6))
        value.backward()
        assert all(gradient is not None for gradient in gradients_of(loss.actor_network_params))
        for params in (loss.qvalue_network_params, loss.target_qvalue_network_params):
            assert all(gradient is None for gradient in gradients_of(params))

    def test_with_priority_weights_equals_the_parents(self, algorithm, make_batch, gradients_of):
        stock, vmf = algorithm.pair()
        batch = make_batch(30)
        batch["priority_weight"] = torch.rand(30, generator=torch.Generator().manual_seed(0))
        plain, _ = seeded(vmf.actor_loss, batch.exclude("priority_weight"))
        expected, _ = seeded(stock.actor_loss, batch.clone())
        value, _ = seeded(vmf.actor_loss, batch.clone())
        assert not torch.isclose(value, plain)
        assert_same(algorithm, value, expected)
        value.backward()
        expected.backward()
        for gradient, reference in zip(
            gradients_of(vmf.actor_network_params),
            gradients_of(stock.actor_network_params),
            strict=True,
        ):
            torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-7)

    def test_propagates_the_gradient_of_the_parent_to_a_shared_encoder(self, algorithm, make_batch):
        received = []
        for loss in algorithm.pair():
            batch = make_batch(12)
            encoder = seeded(nn.Linear, 5, 5)
            batch["observation"] = encoder(batch["observation"])
            value, _ = seeded(loss.actor_loss, batch)
            value.backward()
            received.append(encoder.weight.grad)
        assert received[0].abs().sum() > 0
        torch.testing.assert_close(received[1], received[0], rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("deactivate_vmap", [False, True])
    def test_is_the_same_with_or_without_vmap(self, algorithm, make_batch, deactivate_vmap):
        batch = make_batch(9)
        expected, stock_metadata = seeded(algorithm.build().actor_loss, batch.clone())
        loss = algorithm.build(deactivate_vmap=deactivate_vmap)
        value, metadata = seeded(loss.actor_loss, batch.clone())
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(metadata["vmf_factor"], stock_metadata["vmf_factor"])

    def test_of_critics_with_dropout_equals_the_parents(self, algorithm, make_batch):
        results = []
        for loss_class in (algorithm.stock_class, algorithm.vmf_class):
            network = MLP(in_features=8, out_features=1, num_cells=[32], dropout=0.3)
            loss = algorithm.build(loss_class, critic=algorithm.critic(network=network))
            for param in loss.parameters():
                param.data.fill_(0.1)
            results.append(seeded(loss.actor_loss, make_batch(9))[0])
        assert_same(algorithm, results[1], results[0])

    @pytest.mark.parametrize("scale", [1.0, 65536.0])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_in_half_precision_is_as_accurate_as_torchrls(
        self, algorithm, make_batch, gradients_of, dtype, scale
    ):
        """With and without the loss scale that keeps small gradients from underflowing."""
        results = []
        for loss in algorithm.pair(cells=(64, 64)):
            with torch.autocast("cpu", dtype):
                value, metadata = seeded(loss.actor_loss, make_batch(256))
            (value * scale).backward()
            gradients = gradients_of(loss.actor_network_params)
            results.append(torch.cat([gradient.flatten() / scale for gradient in gradients]))
        expected, found = results
        assert metadata["vmf_factor"].isfinite().all()
        assert (found - expected).norm() < 4e-3 * expected.norm()

    def test_that_fails_does_not_affect_the_critic_loss(self, algorithm, make_batch):
        stock, vmf = algorithm.pair()
        batch = make_batch(6)
        with pytest.raises((KeyError, RuntimeError, TypeError)):
            vmf.actor_loss(TensorDict({"observation": torch.zeros(6, 2)}, [6]))
        expected, _ = seeded(algorithm.critic_loss, stock, batch.clone())
        value, _ = seeded(algorithm.critic_loss, vmf, batch.clone())
        assert torch.equal(value, expected)


class TestActorNoise:
    def noisy_action(self, brute_force, loss, batch, scale, clip):
        action = brute_force.policy_action(loss, batch)
        torch.manual_seed(SEED)
        noise = (torch.randn_like(action) * scale).clamp(-clip, clip)
        return action, (action + noise).clamp(-1, 1).detach()

    @pytest.mark.parametrize(("scale", "clip"), [(0.2, 0.5), (2.0, 0.7)])
    @pytest.mark.parametrize("critics", [2, 5])
    def test_changes_the_action_at_which_the_critics_are_evaluated(
        self, td3, brute_force, make_batch, gradients_of, critics, scale, clip
    ):
        loss = td3.build(num_qvalue_nets=critics, actor_noise=scale, actor_noise_clip=clip)
        batch = make_batch(50)
        action, noisy = self.noisy_action(brute_force, loss, batch, scale, clip)
        if scale == 2.0:
            # Both the clip and the bounds must be active, otherwise the case would test nothing.
            assert (noisy.abs() == 1).any()
            assert torch.isclose((noisy - action).abs(), torch.tensor(clip)).any()
        gradients = brute_force.action_gradients(loss, batch, noisy)
        (action * gradients[0]).sum(-1).mean().backward()
        expected_gradients = [g.clone() for g in gradients_of(loss.actor_network_params)]
        loss.zero_grad()

        value, metadata = seeded(loss.actor_loss, batch.clone())
        value.backward()
        expected = -brute_force.critic_values(loss, batch, noisy)[0].mean()
        torch.testing.assert_close(value, expected)
        factor = brute_force.sampling_factor(gradients, 0)
        torch.testing.assert_close(metadata["vmf_factor"].double(), factor, rtol=0, atol=1e-5)
        for gradient, reference in zip(
            gradients_of(loss.actor_network_params), expected_gradients, strict=True
        ):
            torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-7)

    def test_does_not_change_the_critic_loss(self, td3, make_batch):
        stock, vmf = td3.pair(actor_noise=0.2)
        batch = make_batch(20)
        expected, _ = seeded(stock.value_loss, batch.clone())
        value, _ = seeded(vmf.value_loss, batch.clone())
        assert torch.equal(value, expected)

    def test_of_zero_draws_no_random_number(self, td3, make_batch):
        quiet, noisy = td3.build(), td3.build(actor_noise=0.1)
        before = torch.get_rng_state()
        quiet.actor_loss(make_batch(20))
        assert torch.equal(torch.get_rng_state(), before)
        noisy.actor_loss(make_batch(20))
        assert not torch.equal(torch.get_rng_state(), before)

    def test_still_propagates_a_gradient_to_a_shared_encoder(self, td3, make_batch):
        loss = td3.build(actor_noise=0.2)
        batch = make_batch(12)
        batch["observation"].requires_grad_()
        value, _ = loss.actor_loss(batch)
        value.backward()
        assert (batch["observation"].grad.abs().sum(-1) > 0).all()
