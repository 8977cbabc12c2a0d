"""The losses beyond TD3 and SAC against TorchRL's, with five critics where TorchRL allows it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from helpers.losses import assert_gradients_equal, assert_same, perturb, seeded, total_loss

NESTED = {
    "action": ("agent", "action"),
    "value": ("agent", "quality"),
    "observation": ("agent", "seen", "state"),
}
FLAT = {"action": "move", "value": "quality", "observation": "state"}


def masked(batch):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(batch.shape, generator=generator) > 0.3
    return batch.set(("collector", "mask"), mask)


class TestForward:
    def assert_equal_to_torchrls(self, algorithm, batch, **options):
        results = []
        stock, vmf = algorithm.pair(**options)
        for loss in (stock, vmf):
            seen = batch.clone()
            losses = seeded(loss, seen)
            results.append((losses, seen, torch.get_rng_state()))
            total_loss(losses).backward()
        (expected, stock_batch, stock_state), (found, vmf_batch, vmf_state) = results
        own = {"vmf_factor", "vmf_resultant_length"}
        assert set(found.keys()) == set(expected.keys()) | own
        for name, value in expected.items():
            assert_same(algorithm, found[name], value)
        assert set(vmf_batch.keys(True)) == set(stock_batch.keys(True)) | {"vmf_factor"}
        for name in stock_batch.keys(True, True):
            assert torch.equal(vmf_batch[name], stock_batch[name]), name
        assert torch.equal(vmf_batch["vmf_factor"], found["vmf_factor"])
        assert torch.equal(vmf_state, stock_state)
        assert_gradients_equal(vmf, stock)

    def test_values_gradients_and_random_numbers_are_torchrls(self, ensemble, make_batch):
        self.assert_equal_to_torchrls(ensemble, make_batch(7))

    @pytest.mark.filterwarnings("ignore:.*with reduction='none'")
    def test_without_reduction_on_a_batch_of_two_dimensions(self, ensemble, make_batch):
        self.assert_equal_to_torchrls(ensemble, make_batch((3, 4)), reduction="none")

    def test_as_a_sum_over_unmasked_transitions_without_vmap(self, ensemble, make_batch):
        options = {"reduction": "sum", "deactivate_vmap": True}
        self.assert_equal_to_torchrls(ensemble, masked(make_batch(7)), **options)

    def test_with_other_keys(self, ensemble, make_batch):
        # TorchRL's CQL does not support nested observations.
        keys = FLAT if ensemble.name == "cql" else NESTED
        names = {key: keys[key] for key in ("observation", "action")}
        self.assert_equal_to_torchrls(ensemble, make_batch(7, **names), **keys)

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [1, (3, 4)], ids=str)
    @pytest.mark.parametrize("deactivate_vmap", [False, True])
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.filterwarnings("ignore:.*with reduction='none'")
    def test_with_other_combinations_of_options(
        self, ensemble, make_batch, reduction, deactivate_vmap, size
    ):
        options = {"reduction": reduction, "deactivate_vmap": deactivate_vmap}
        self.assert_equal_to_torchrls(ensemble, masked(make_batch(size)), **options)

    @pytest.mark.parametrize(
        "options",
        [{"with_lagrange": True}, {"max_q_backup": True}, {"deterministic_backup": False}],
        ids=lambda options: next(iter(options)),
    )
    def test_of_cql_with_its_own_options(self, cql, make_batch, options):
        self.assert_equal_to_torchrls(cql, make_batch(7), **options)

    def test_of_tqc_without_terminal_states(self, tqc, make_batch):
        self.assert_equal_to_torchrls(tqc, make_batch(20), skip_done_states=True)

    def test_of_tqc_and_td3_bc_with_importance_weights(self, tqc, td3_bc, make_batch):
        batch = make_batch(9)
        batch["priority_weight"] = torch.rand(9, generator=torch.Generator().manual_seed(0))
        for algorithm in (tqc, td3_bc):
            self.assert_equal_to_torchrls(algorithm, batch)
            weighted, plain = (
                seeded(algorithm.build(), data)["loss_actor"]
                for data in (batch.clone(), batch.exclude("priority_weight"))
            )
            assert not torch.isclose(weighted, plain)

    def test_without_measuring_is_torchrls(self, ensemble, make_batch):
        stock, vmf = ensemble.build(ensemble.stock_class), ensemble.build(measure=False)
        expected, found = (seeded(loss, make_batch(7)) for loss in (stock, vmf))
        assert set(found.keys()) == set(expected.keys())
        assert vmf.out_keys == list(stock.out_keys)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", ["crossq", "tqc", "td3_bc", "cql"])
def test_the_split_methods_equal_torchrls(name, request, make_batch):
    algorithm = request.getfixturevalue(name)
    for method in ("actor_loss", algorithm.critic_loss_name):
        stock, vmf = algorithm.pair()
        expected, stock_metadata = seeded(getattr(stock, method), make_batch(7))
        value, metadata = seeded(getattr(vmf, method), make_batch(7))
        assert_same(algorithm, value, expected)
        own = {"vmf_factor", "vmf_resultant_length"} if method == "actor_loss" else set()
        assert metadata.keys() == stock_metadata.keys() | own
        for key, entry in stock_metadata.items():
            assert_same(algorithm, metadata[key], entry)
        value.backward()
        expected.backward()
        assert_gradients_equal(vmf, stock)


# As in the table of docs/torchrl.md.
TEMPERATURE_LOSSES = {
    "redq": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]).mean(),
    "crossq": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]),
    "tqc": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]).mean(),
    "td3_bc": lambda loss, metadata: 0,
    "cql": lambda loss, metadata: loss.alpha_loss(metadata)[0],
}


def test_the_losses_of_separate_batches_train_all_parameters(ensemble, make_batch):
    loss, critic_batch = ensemble.build(), make_batch(12, seed=1)
    total, _ = ensemble.critic_loss(loss, critic_batch)
    if ensemble.name == "cql":
        total = total + loss.cql_loss(critic_batch)[0]
    actor_batch = make_batch(9, seed=2).select("observation", "action")
    actor_loss, metadata = loss.actor_loss(actor_batch)
    total = total + actor_loss + TEMPERATURE_LOSSES[ensemble.name](loss, metadata)
    total.backward()
    assert metadata["vmf_factor"].shape == (9,)
    for name, param in loss.named_parameters():
        assert param.grad is not None, name
        assert param.grad.abs().sum() > 0, name


@pytest.mark.parametrize("name", ["crossq", "td3_bc"])
def test_extra_critics_serve_the_uncertainty_only(name, request, make_batch):
    algorithm = dataclasses.replace(request.getfixturevalue(name), own_defaults={})
    loss = algorithm.build()
    before, factors = seeded(loss.actor_loss, make_batch(20))
    perturb(loss.qvalue_network_params, slice(2, None), amount=1)
    after, other_factors = seeded(loss.actor_loss, make_batch(20))
    assert torch.equal(after, before)
    assert (factors["vmf_factor"] - other_factors["vmf_factor"]).abs().max() > 1e-2


def test_extra_critics_of_td3_bc_do_not_change_the_target(td3_bc, make_batch):
    loss = td3_bc.build(num_target_critics=2)
    before, _ = seeded(loss.qvalue_loss, make_batch(20))
    perturb(loss.target_qvalue_network_params, slice(2, None))
    assert torch.equal(seeded(loss.qvalue_loss, make_batch(20))[0], before)
    perturb(loss.target_qvalue_network_params, slice(1, 2))
    assert not torch.isclose(seeded(loss.qvalue_loss, make_batch(20))[0], before)


def test_of_cql_with_one_target_critic_the_second_serves_the_uncertainty_only(cql, make_batch):
    loss = cql.build(num_target_critics=1)
    before, factors = seeded(loss.actor_loss, make_batch(20))
    target, _ = seeded(loss.q_loss, make_batch(20))
    perturb(loss.target_qvalue_network_params, slice(1, 2))
    assert torch.equal(seeded(loss.q_loss, make_batch(20))[0], target)
    perturb(loss.qvalue_network_params, slice(1, 2), amount=1)
    after, other_factors = seeded(loss.actor_loss, make_batch(20))
    assert torch.equal(after, before)
    assert not torch.isclose(factors["vmf_factor"], other_factors["vmf_factor"]).any()
