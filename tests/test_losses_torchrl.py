"""The losses compute TorchRL's values and gradients, and draw the same random numbers."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.modules import MLP, ValueOperator

from helpers.losses import (
    assert_gradients_equal,
    assert_same,
    gradients,
    make_batch,
    seeded,
    total_loss,
)

NESTED = {
    "action": ("agent", "action"),
    "value": ("agent", "quality"),
    "observation": ("agent", "seen", "state"),
}
FLAT = {"action": "move", "value": "quality", "observation": "state"}
ADDED = {"vmf_factor", "vmf_resultant_length"}

pytestmark = pytest.mark.filterwarnings("ignore:.*with reduction='none'")


def five_critics(algorithm):
    """The options with which all of five critics form the TD target, as in TorchRL."""
    is_default = algorithm.name not in ("td3", "sac")
    return {} if is_default else {"num_qvalue_nets": 5, "num_target_critics": None}


def assert_forward_equals_torchrls(algorithm, batch, **options):
    results = []
    stock, vmf = algorithm.pair(**five_critics(algorithm), **options)
    for loss in (stock, vmf):
        seen = batch.clone()
        losses = seeded(loss, seen)
        results.append((losses, seen, torch.get_rng_state()))
        total_loss(losses).backward()
    (expected, stock_batch, stock_state), (found, vmf_batch, vmf_state) = results
    assert set(found.keys()) == set(expected.keys()) | ADDED
    for name, value in expected.items():
        assert_same(algorithm, found[name], value)
    assert set(vmf_batch.keys(True)) == set(stock_batch.keys(True)) | {"vmf_factor"}
    for name in stock_batch.keys(True, True):
        assert torch.equal(vmf_batch[name], stock_batch[name]), name
    assert torch.equal(vmf_batch["vmf_factor"], found["vmf_factor"])
    assert torch.equal(vmf_state, stock_state)
    is_exact = algorithm.name == "td3" and "priority_weight" not in set(batch.keys())
    assert_gradients_equal(vmf, stock, tolerance=0 if is_exact else 1e-6)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (7, {}),
        (100, {}),
        ((3, 4), {"reduction": "none"}),
        (7, {"reduction": "sum", "deactivate_vmap": True}),
    ],
    ids=str,
)
def test_forward_equals_torchrls(any_algorithm, size, options):
    batch = make_batch(size)
    if "deactivate_vmap" in options:
        mask = torch.rand(batch.shape, generator=torch.Generator().manual_seed(0)) > 0.3
        batch.set(("collector", "mask"), mask)
    assert_forward_equals_torchrls(any_algorithm, batch, **options)


def test_forward_with_other_keys_equals_torchrls(any_algorithm):
    # TorchRL's CQL does not support nested observations.
    keys = FLAT if any_algorithm.name == "cql" else NESTED
    names = {key: keys[key] for key in ("observation", "action")}
    assert_forward_equals_torchrls(any_algorithm, make_batch(7, **names), **keys)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cql", {"with_lagrange": True}),
        ("cql", {"max_q_backup": True}),
        ("cql", {"deterministic_backup": False}),
        ("tqc", {"skip_done_states": True}),
    ],
)
def test_forward_with_options_of_one_loss_equals_torchrls(name, options, request):
    assert_forward_equals_torchrls(request.getfixturevalue(name), make_batch(20), **options)


@pytest.mark.parametrize("name", ["td3", "sac", "tqc", "td3_bc"])
def test_importance_weights_enter_the_losses_as_in_torchrl(name, request):
    algorithm, batch = request.getfixturevalue(name), make_batch(9)
    batch["priority_weight"] = torch.rand(9, generator=torch.Generator().manual_seed(0))
    assert_forward_equals_torchrls(algorithm, batch)
    weighted, plain = (
        seeded(algorithm.build(), data)["loss_actor"]
        for data in (batch.clone(), batch.exclude("priority_weight"))
    )
    assert not torch.isclose(weighted, plain)


def test_without_measuring_the_loss_is_torchrls_bit_for_bit(any_algorithm):
    stock = any_algorithm.build(any_algorithm.stock_class)
    vmf = any_algorithm.build(measure=False)
    expected, found = (seeded(loss, make_batch(7)) for loss in (stock, vmf))
    assert set(found.keys()) == set(expected.keys())
    assert vmf.out_keys == list(stock.out_keys)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", ["td3", "sac", "crossq", "tqc", "td3_bc", "cql"])
def test_the_methods_for_separate_batches_equal_torchrls(name, request):
    algorithm = request.getfixturevalue(name)
    for method in ("actor_loss", algorithm.critic_loss_name):
        stock, vmf = algorithm.pair(**five_critics(algorithm))
        expected, stock_metadata = seeded(getattr(stock, method), make_batch(7))
        batch = make_batch(7)
        value, metadata = seeded(getattr(vmf, method), batch)
        assert_same(algorithm, value, expected)
        added = ADDED if method == "actor_loss" else set()
        assert metadata.keys() == stock_metadata.keys() | added
        assert "vmf_factor" not in set(batch.keys())
        for key, entry in stock_metadata.items():
            assert_same(algorithm, metadata[key], entry)
        value.backward()
        expected.backward()
        assert_gradients_equal(vmf, stock)


def test_sac_with_a_value_network_equals_torchrls(sac):
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


def test_the_actor_loss_propagates_no_gradient_to_the_critics(any_algorithm):
    loss = any_algorithm.build()
    loss.actor_loss(make_batch(6))[0].backward()
    found, parts = gradients(loss), dict(loss.named_parameters())
    assert found.keys() == {name for name in parts if name.startswith("actor")}


@pytest.mark.parametrize("options", [{}, {"actor_noise": 1e-7}], ids=["plain", "noise"])
def test_a_shared_encoder_receives_torchrls_gradient(algorithm, options):
    received = []
    for loss in algorithm.pair(**(options if algorithm.name == "td3" else {})):
        batch = make_batch(12)
        encoder = seeded(nn.Linear, 5, 5)
        batch["observation"] = encoder(batch["observation"])
        seeded(loss.actor_loss, batch)[0].backward()
        received.append(encoder.weight.grad)
    assert received[0].abs().sum() > 0
    torch.testing.assert_close(received[1], received[0], rtol=1e-4, atol=1e-6)


def test_critics_with_dropout_draw_as_in_torchrl(algorithm):
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
def test_half_precision_is_as_accurate_as_in_torchrl(algorithm, dtype, scale):
    """With and without the loss scale that keeps small gradients from underflowing."""
    results = []
    for loss in algorithm.pair(cells=(64, 64)):
        with torch.autocast("cpu", dtype):
            value, metadata = seeded(loss.actor_loss, make_batch(256))
        (value * scale).backward()
        found = gradients(loss).values()
        results.append(torch.cat([gradient.flatten() / scale for gradient in found]))
    expected, ours = results
    assert metadata["vmf_factor"].isfinite().all()
    assert (ours - expected).norm() < 4e-3 * expected.norm()


def test_an_actor_loss_that_fails_does_not_affect_the_critic_loss(algorithm):
    stock, vmf = algorithm.pair()
    with pytest.raises((KeyError, RuntimeError, TypeError)):
        vmf.actor_loss(TensorDict({"observation": torch.zeros(6, 2)}, [6]))
    expected, value = (
        seeded(algorithm.critic_loss, loss, make_batch(6))[0] for loss in (stock, vmf)
    )
    assert torch.equal(value, expected)
