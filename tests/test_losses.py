"""The losses against TorchRL's own and against one ``torch.autograd.grad`` per critic."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives import SoftUpdate

SEED = 5


def seeded(function, *args):
    """Calls the function at a fixed state of the random generator."""
    torch.manual_seed(SEED)
    return function(*args)


def perturb(params, critics, amount=0.3):
    """Moves the parameters of some critics away from where they are."""
    generator = torch.Generator().manual_seed(9)
    for param in params.values(True, True):
        noise = torch.randn(param.shape, generator=generator)
        param.data[critics] += amount * noise[critics]


def assert_same(algorithm, result, expected):
    """Bit for bit for TD3; SAC asks its critics in another batched product, hence 1e-6."""
    if algorithm.name == "td3":
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def used_critic(algorithm, values, targets=2):
    return 0 if algorithm.name == "td3" else values[:targets].argmin(0)


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

    def test_with_the_entropy_gradient_leave_the_loss_as_it_was(self, sac, make_batch):
        stock, vmf = sac.pair(entropy_gradient=True)
        batch = make_batch(20)
        expected, _ = seeded(stock.actor_loss, batch.clone())
        result, _ = seeded(vmf.actor_loss, batch.clone())
        assert_same(sac, result, expected)

    def test_the_entropy_gradient_follows_the_temperature(self, sac, brute_force, make_batch):
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

    def test_are_the_same_under_no_grad(self, algorithm, make_batch):
        loss = algorithm.build()
        batch = make_batch(6)
        expected_loss, expected = seeded(loss.actor_loss, batch.clone())
        with torch.no_grad():
            value, metadata = seeded(loss.actor_loss, batch.clone())
        assert not value.requires_grad
        torch.testing.assert_close(value, expected_loss.detach())
        torch.testing.assert_close(metadata["vmf_factor"], expected["vmf_factor"])

    def test_follow_the_parameters(self, algorithm, make_batch):
        loss = algorithm.build()
        batch = make_batch(6)
        _, before = seeded(loss.actor_loss, batch.clone())
        perturb(loss.qvalue_network_params, [1])
        _, after = seeded(loss.actor_loss, batch.clone())
        assert (before["vmf_factor"] != after["vmf_factor"]).all()

    def test_of_a_critic_that_ignores_the_action_are_one(self, algorithm, make_batch):
        loss = algorithm.build()
        for param in loss.qvalue_network_params.values(True, True):
            param.data.zero_()
        _, metadata = loss.actor_loss(make_batch(6))
        torch.testing.assert_close(metadata["vmf_factor"], torch.ones(6), rtol=0, atol=0)
        assert (metadata["vmf_resultant_length"] == 0).all()

    def test_survive_a_rebuild_of_the_vmapped_critics(self, algorithm, make_batch):
        loss = algorithm.build()
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


class TestActorLoss:
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("size", [7, 100, 256])
    def test_of_td3_and_its_gradient_are_torchrls_bit_for_bit(
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
    def test_of_sac_and_its_gradient_are_torchrls_to_1e_6(
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

    def test_sends_no_gradient_to_the_critics(self, algorithm, make_batch, gradients_of):
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

    def test_sends_a_shared_encoder_the_gradient_of_the_parent(self, algorithm, make_batch):
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
    def test_with_or_without_vmap_gives_the_same(self, algorithm, make_batch, deactivate_vmap):
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

    def test_that_fails_leaves_the_critic_loss_working(self, algorithm, make_batch):
        stock, vmf = algorithm.pair()
        batch = make_batch(6)
        with pytest.raises((KeyError, RuntimeError, TypeError)):
            vmf.actor_loss(TensorDict({"observation": torch.zeros(6, 2)}, [6]))
        expected, _ = seeded(algorithm.critic_loss, stock, batch.clone())
        value, _ = seeded(algorithm.critic_loss, vmf, batch.clone())
        assert torch.equal(value, expected)


class CountedIdentity(torch.autograd.Function):
    """Counts how often a backward pass runs through it."""

    generate_vmap_rule = True
    backwards = 0

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        CountedIdentity.backwards += 1
        return gradient.clone()


class CountedNetwork(nn.Module):
    """A critic's network that counts its forward calls; vmap makes one for all critics."""

    forwards = 0

    def __init__(self):
        super().__init__()
        self.network = MLP(in_features=8, out_features=1, num_cells=[16])

    def forward(self, *inputs):
        CountedNetwork.forwards += 1
        return self.network(CountedIdentity.apply(torch.cat(inputs, -1)))


class TestCost:
    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("options", [{}, {"deactivate_vmap": True}], ids=["vmap", "loop"])
    def test_the_critics_run_forward_and_backward_once_as_in_torchrl(
        self, algorithm, make_batch, critics, options
    ):
        counts = []
        for loss_class in (algorithm.stock_class, algorithm.vmf_class):
            critic = algorithm.critic(network=CountedNetwork())
            loss = algorithm.build(loss_class, critic=critic, num_qvalue_nets=critics, **options)
            CountedNetwork.forwards = CountedIdentity.backwards = 0
            value, _ = loss.actor_loss(make_batch(6))
            value.backward()
            counts.append((CountedNetwork.forwards, CountedIdentity.backwards))
        calls = critics if options else 1
        assert counts[0] == (calls, calls)
        assert counts[1] == counts[0]

    def test_an_actor_update_multiplies_no_more_numbers_than_torchrls(self, algorithm, make_batch):
        operations = []
        for loss in algorithm.pair(num_qvalue_nets=5, num_target_critics=5):
            with FlopCounterMode(display=False) as counter:
                value, _ = loss.actor_loss(make_batch(32))
                value.backward()
            operations.append(counter.get_total_flops())
        assert 0 < operations[1] <= operations[0]


class TestCriticLoss:
    @pytest.mark.parametrize("critics", [2, 5])
    def test_equals_the_parents_bit_for_bit(self, algorithm, make_batch, gradients_of, critics):
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
            results.append(
                [seeded(method, batch)[0] for method in (loss.qvalue_v1_loss, loss.value_loss)]
            )
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
        """Σ_i (Q_i - y)² with y from the first target critics, written out by hand."""
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


class TestActorNoise:
    def noisy_action(self, brute_force, loss, batch, scale, clip):
        action = brute_force.policy_action(loss, batch)
        torch.manual_seed(SEED)
        noise = (torch.randn_like(action) * scale).clamp(-clip, clip)
        return action, (action + noise).clamp(-1, 1).detach()

    @pytest.mark.parametrize(("scale", "clip"), [(0.2, 0.5), (2.0, 0.7)])
    @pytest.mark.parametrize("critics", [2, 5])
    def test_moves_the_point_at_which_the_critics_are_asked(
        self, td3, brute_force, make_batch, gradients_of, critics, scale, clip
    ):
        loss = td3.build(num_qvalue_nets=critics, actor_noise=scale, actor_noise_clip=clip)
        batch = make_batch(50)
        action, noisy = self.noisy_action(brute_force, loss, batch, scale, clip)
        if scale == 2.0:
            # Both the clip and the bounds must bite, or the case would show nothing.
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

    def test_leaves_the_critic_loss_alone(self, td3, make_batch):
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

    def test_still_sends_a_shared_encoder_a_gradient(self, td3, make_batch):
        loss = td3.build(actor_noise=0.2)
        batch = make_batch(12)
        batch["observation"].requires_grad_()
        value, _ = loss.actor_loss(batch)
        value.backward()
        assert (batch["observation"].grad.abs().sum(-1) > 0).all()


class TestForward:
    def test_equals_the_parents(self, algorithm, make_batch):
        stock, vmf = algorithm.pair()
        batch, stock_batch = make_batch(20), make_batch(20)
        expected = seeded(stock, stock_batch)
        result = seeded(vmf, batch)
        for key in expected.keys():  # noqa: SIM118, a tensordict iterates over its batch
            assert_same(algorithm, result[key], expected[key])
        assert torch.equal(batch["td_error"], stock_batch["td_error"])

    def test_takes_keyword_arguments(self, algorithm, make_batch):
        loss = algorithm.build()
        batch = make_batch(20)
        expected = seeded(loss, batch.clone())
        loss.select_out_keys("loss_actor", "loss_qvalue")
        flat = {
            "_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys
        }
        torch.manual_seed(SEED)
        loss_actor, loss_qvalue = loss(**flat)
        assert torch.equal(loss_actor, expected["loss_actor"])
        assert torch.equal(loss_qvalue, expected["loss_qvalue"])

    def test_a_few_updates_give_torchrls_parameters_bit_for_bit(self, td3, make_batch):
        stock, vmf = td3.pair(cells=(16, 16))
        for loss in (stock, vmf):
            updater = SoftUpdate(loss, tau=0.1)
            actor = torch.optim.Adam(loss.actor_network_params.values(True, True), lr=1e-2)
            critic = torch.optim.Adam(loss.qvalue_network_params.values(True, True), lr=1e-2)
            torch.manual_seed(SEED)
            for step in range(5):
                batch = make_batch(32, seed=step)
                for method, optimizer in ((loss.value_loss, critic), (loss.actor_loss, actor)):
                    method(batch)[0].backward()
                    optimizer.step()
                    optimizer.zero_grad()
                updater.step()
        expected = stock.state_dict()
        for key, value in vmf.state_dict().items():
            assert torch.equal(value, expected[key]), key


class TestKeys:
    @pytest.mark.parametrize(
        "keys",
        [
            {"action": "move", "value": "quality", "observation": "state"},
            {
                "action": ("agent", "action"),
                "value": ("agent", "quality"),
                "observation": ("agent", "seen", "state"),
            },
        ],
        ids=["flat", "nested"],
    )
    def test_of_ones_own_work_as_in_the_parents(self, algorithm, make_batch, gradients_of, keys):
        stock, vmf = algorithm.pair(num_qvalue_nets=3, num_target_critics=3, **keys)
        names = {"observation": keys["observation"], "action": keys["action"]}
        batch = make_batch(15, **names)
        expected, _ = seeded(stock.actor_loss, batch.clone())
        value, metadata = seeded(vmf.actor_loss, batch.clone())
        assert_same(algorithm, value, expected)
        value.backward()
        assert all(gradient is not None for gradient in gradients_of(vmf.actor_network_params))
        critic, _ = seeded(algorithm.critic_loss, vmf, batch.clone())
        stock_critic, _ = seeded(algorithm.critic_loss, stock, batch.clone())
        assert torch.equal(critic, stock_critic)
        plain = algorithm.build(num_qvalue_nets=3, num_target_critics=3)
        _, plain_metadata = seeded(plain.actor_loss, make_batch(15))
        assert torch.equal(metadata["vmf_factor"], plain_metadata["vmf_factor"])


class TestConstruction:
    def test_from_a_list_of_critics_keeps_their_parameters(
        self, algorithm, brute_force, make_batch
    ):
        torch.manual_seed(3)
        critics = [algorithm.critic() for _ in range(3)]
        # The parameters are stacked and leave the modules, so the reference is taken first.
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
    def test_without_measuring_it_is_the_parents_loss(self, algorithm, make_batch, num_critics):
        stock = algorithm.build(algorithm.stock_class, seed=0)
        vmf = algorithm.build(seed=0, measure=False)
        batch = make_batch(10)
        expected, metadata = seeded(stock.actor_loss, batch.clone())
        result, same_metadata = seeded(vmf.actor_loss, batch.clone())
        assert torch.equal(result, expected)
        assert same_metadata.keys() == metadata.keys()
        # The critics beyond the second stay out of it.
        many = algorithm.build(seed=0, measure=False, num_qvalue_nets=num_critics)
        assert "vmf_factor" not in seeded(many.actor_loss, batch.clone())[1]

    def test_the_state_is_exchanged_with_the_parents(self, algorithm, make_batch):
        stock = algorithm.build(algorithm.stock_class, seed=0)
        vmf = algorithm.build(seed=1)
        batch = make_batch(10)
        # SAC makes the buffer of its target entropy when it is first asked for.
        stock(batch.clone())
        getattr(vmf, "target_entropy", None)
        vmf.load_state_dict(stock.state_dict())
        expected, _ = seeded(stock.actor_loss, batch.clone())
        value, _ = seeded(vmf.actor_loss, batch.clone())
        assert_same(algorithm, value, expected)
        assert vmf.state_dict().keys() == stock.state_dict().keys()

    def test_a_deep_copy_is_independent(self, algorithm, make_batch):
        loss = algorithm.build()
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
    def test_refuses_fewer_than_one_target_critic(self, algorithm, targets):
        with pytest.raises(ValueError, match=f"num_target_critics must be .* got {targets}"):
            algorithm.build(num_target_critics=targets)

    @pytest.mark.parametrize("noise", [{"actor_noise": -0.1}, {"actor_noise_clip": -0.5}])
    def test_refuses_negative_noise(self, td3, noise):
        with pytest.raises(ValueError, match=f"at least 0.*{next(iter(noise.values()))}"):
            td3.build(**noise)

    def test_refuses_unknown_arguments(self, algorithm):
        with pytest.raises(TypeError, match="num_targets"):
            algorithm.build(num_targets=2)

    def test_refuses_the_other_algorithms_arguments(self, algorithm):
        foreign = {"td3": "entropy_gradient", "sac": "actor_noise"}[algorithm.name]
        with pytest.raises(TypeError, match=foreign):
            algorithm.build(**{foreign: 1})

    def test_keeps_the_parents_checks(self, td3):
        with pytest.raises(ValueError, match="bounds"):
            td3.build(bounds=None)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("aot_eager", {"num_qvalue_nets": 5, "actor_noise": 0.2}),
        # Needs a C++ compiler and half a minute; the one graph is found by the case above too.
        pytest.param("inductor", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_actor_loss_of_td3_compiles_into_one_graph(
    td3, make_batch, gradients_of, backend, options
):
    torch.compiler.reset()
    eager, compiled = td3.build(**options), td3.build(**options)
    compiled_loss = torch.compile(compiled.actor_loss, fullgraph=True, backend=backend)
    for seed in range(2):
        batch = make_batch(16, seed=seed)
        expected, metadata = seeded(eager.actor_loss, batch.clone())
        value, compiled_metadata = seeded(compiled_loss, batch.clone())
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            compiled_metadata["vmf_factor"], metadata["vmf_factor"], rtol=0, atol=1e-5
        )
        value.backward()
        expected.backward()
    for gradient, reference in zip(
        gradients_of(compiled.actor_network_params),
        gradients_of(eager.actor_network_params),
        strict=True,
    ):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


def test_noise_on_the_actors_actions_needs_the_tap(td3):
    with pytest.raises(ValueError, match=r"actor_noise=0\.2 needs measure"):
        td3.build(actor_noise=0.2, measure=False)
