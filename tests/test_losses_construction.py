"""Construction, copying and loading of the losses, and the arguments that they reject."""

from __future__ import annotations

import copy

import pytest
import torch

from helpers.losses import SEED, assert_same, perturb, seeded, used_critic


class TestConstruction:
    def test_with_one_critic_it_warns_that_vmfer_is_uniform(self, algorithm):
        with pytest.warns(UserWarning, match="one critic"):
            algorithm.build(num_qvalue_nets=1)

    def test_from_a_list_of_critics_keeps_their_parameters(
        self, algorithm, brute_force, make_batch
    ):
        torch.manual_seed(3)
        critics = [algorithm.critic() for _ in range(3)]
        # Stacking removes the parameters from the modules, so the reference is computed first.
        references = copy.deepcopy(critics)
        loss = algorithm.build(critic=critics, num_qvalue_nets=3)
        batch = make_batch(10)
        _, metadata = seeded(loss.actor_loss, batch.clone())
        action = brute_force.policy_action(loss, batch, seed=SEED).detach().requires_grad_()
        values = torch.stack(
            [
                critic(batch.copy().set("action", action))["state_action_value"]
                for critic in references
            ]
        ).squeeze(-1)
        gradients = torch.stack(
            [torch.autograd.grad(-value.sum(), action, retain_graph=True)[0] for value in values]
        )
        expected = brute_force.sampling_factor(gradients, used_critic(algorithm, values))
        torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("num_critics", [2, 5])
    def test_without_measuring_it_equals_the_parents_loss(self, algorithm, make_batch, num_critics):
        stock = algorithm.build(algorithm.stock_class, seed=0)
        vmf = algorithm.build(seed=0, measure=False)
        batch = make_batch(10)
        expected, metadata = seeded(stock.actor_loss, batch.clone())
        result, same_metadata = seeded(vmf.actor_loss, batch.clone())
        assert torch.equal(result, expected)
        assert same_metadata.keys() == metadata.keys()
        # Critics beyond the second are not used.
        many = algorithm.build(seed=0, measure=False, num_qvalue_nets=num_critics)
        assert "vmf_factor" not in seeded(many.actor_loss, batch.clone())[1]

    def test_the_state_is_compatible_with_the_parents(self, any_algorithm, make_batch):
        stock = any_algorithm.build(any_algorithm.stock_class, seed=0)
        vmf = any_algorithm.build(seed=1)
        batch = make_batch(10)
        # SAC creates the buffer of its target entropy at its first use.
        stock(batch.clone())
        getattr(vmf, "target_entropy", None)
        vmf.load_state_dict(stock.state_dict())
        expected, losses = (seeded(loss, batch.clone()) for loss in (stock, vmf))
        for name in ("loss_actor", "loss_qvalue"):
            assert_same(any_algorithm, losses[name], expected[name])
        assert vmf.state_dict().keys() == stock.state_dict().keys()

    def test_a_deep_copy_is_independent(self, any_algorithm, make_batch):
        loss = any_algorithm.build()
        batch = make_batch(10)
        twin = copy.deepcopy(loss)
        expected, metadata = seeded(loss.actor_loss, batch.clone())
        value, twin_metadata = seeded(twin.actor_loss, batch.clone())
        assert torch.equal(value, expected)
        assert torch.equal(twin_metadata["vmf_factor"], metadata["vmf_factor"])
        for params in (twin.qvalue_network_params, twin.actor_network_params):
            perturb(params, slice(None))
        moved, _ = seeded(twin.actor_loss, batch.clone())
        again, again_metadata = seeded(loss.actor_loss, batch.clone())
        assert not torch.isclose(moved, expected)
        assert torch.equal(again, expected)
        assert torch.equal(again_metadata["vmf_factor"], metadata["vmf_factor"])

    @pytest.mark.parametrize("targets", [0, -1])
    def test_rejects_fewer_than_one_target_critic(self, algorithm, targets):
        with pytest.raises(ValueError, match=f"num_target_critics must be .* got {targets}"):
            algorithm.build(num_target_critics=targets)

    @pytest.mark.parametrize("noise", [{"actor_noise": -0.1}, {"actor_noise_clip": -0.5}])
    def test_rejects_negative_noise(self, td3, noise):
        with pytest.raises(ValueError, match=f"at least 0.*{next(iter(noise.values()))}"):
            td3.build(**noise)

    def test_rejects_unknown_arguments(self, any_algorithm):
        with pytest.raises(TypeError, match="num_targets"):
            any_algorithm.build(num_targets=2)

    def test_rejects_the_other_algorithms_arguments(self, algorithm):
        foreign = {"td3": "entropy_gradient", "sac": "actor_noise"}[algorithm.name]
        with pytest.raises(TypeError, match=foreign):
            algorithm.build(**{foreign: 1})

    def test_keeps_the_parents_checks(self, td3):
        with pytest.raises(ValueError, match="bounds"):
            td3.build(bounds=None)


def test_actor_noise_requires_measuring(td3):
    with pytest.raises(ValueError, match=r"actor_noise=0\.2 requires measure"):
        td3.build(actor_noise=0.2, measure=False)
