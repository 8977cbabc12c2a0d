"""Losses of actors weighted by the factors of their batch, against one loss per transition."""

from __future__ import annotations

import pytest
import torch

from helpers import brute_force
from helpers.losses import gradients, make_batch, seeded, total_loss

SIZE = 12
MANY = pytest.mark.parametrize("name", ["td3", "sac", "redq", "crossq", "tqc", "cql"])
POWERS = pytest.mark.parametrize("power", [1, 4.0, -3.0])


def shares(algorithm, loss, batch, power):
    """The probabilities of resampling the batch with P ∝ p^power."""
    factors, _ = brute_force.factors_and_lengths(loss, batch, algorithm.used)
    weights = factors**power
    assert weights.std() > 1e-3
    return (weights / weights.sum()).float()


def unreduced(algorithm):
    """A loss without weights that returns one value for each transition."""
    loss = algorithm.build()
    loss.reduction = "none"
    return loss


def check_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        scale = expected[name].abs().max().clamp(min=1e-3)
        torch.testing.assert_close(gradient / scale, expected[name] / scale, rtol=0, atol=1e-4)


@POWERS
@MANY
def test_the_gradient_is_the_expected_one_of_resampling(name, power, request):
    algorithm, batch = request.getfixturevalue(name), make_batch(SIZE)
    loss = algorithm.build(weighting=power)
    value, metadata = seeded(loss.actor_loss, batch.clone())
    value.backward()
    found = gradients(loss, "actor")

    plain = unreduced(algorithm)
    share = shares(algorithm, plain, batch, power)
    losses, _ = seeded(plain.actor_loss, batch.clone())
    losses = losses if losses.ndim == 1 else losses.mean(0)  # of REDQ's critics
    expected = (losses * share).sum()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    check_gradients(found, gradients(plain, "actor"))
    torch.testing.assert_close(metadata["vmf_weight"], share * SIZE, rtol=1e-4, atol=1e-5)


@POWERS
def test_both_terms_of_td3_bc_are_weighted(td3_bc, power):
    batch = make_batch(SIZE)
    loss = td3_bc.build(weighting=power)
    value, metadata = seeded(loss.actor_loss, batch.clone())
    value.backward()
    found = gradients(loss, "actor")

    share = shares(td3_bc, loss, batch, power)
    action = brute_force.policy_action(loss, batch)
    values = brute_force.critic_values(loss, batch, action)[0]
    scale = loss.alpha / (share * values.abs()).sum().detach()
    distance = (share[:, None] * (action - batch["action"]) ** 2).sum() / action.shape[-1]
    expected = distance - scale * (share * values).sum()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    check_gradients(found, gradients(loss, "actor"))
    torch.testing.assert_close(metadata["lmbd"], scale, rtol=1e-4, atol=0)
    torch.testing.assert_close(metadata["bc_loss"], distance.detach(), rtol=1e-4, atol=0)


def test_importance_weights_multiply_the_weights(td3):
    batch = make_batch(SIZE).set("priority_weight", torch.rand(SIZE))
    loss = td3.build(weighting=2.0)
    value, _ = loss.actor_loss(batch)
    plain = unreduced(td3)
    share = shares(td3, plain, batch, 2.0) * batch["priority_weight"]
    losses, _ = plain.actor_loss(batch.exclude("priority_weight"))
    torch.testing.assert_close(value, (losses * share).sum() / share.sum(), rtol=1e-4, atol=1e-5)


def test_the_sum_over_a_batch_is_weighted_by_the_same_weights(td3):
    batch = make_batch(SIZE)
    mean, _ = td3.build(weighting=2.0).actor_loss(batch)
    total, _ = td3.build(weighting=2.0, reduction="sum").actor_loss(batch)
    torch.testing.assert_close(total / SIZE, mean)


def test_padded_steps_have_no_weight(td3):
    batch, loss = make_batch((2, 6)), td3.build(weighting=4.0)
    batch["collector", "mask"] = torch.ones(2, 6, dtype=torch.bool)
    batch["collector", "mask"][1, 3:] = False
    padded, _ = loss.actor_loss(batch)
    whole, _ = loss.actor_loss(torch.cat([batch[0], batch[1, :3]]))
    torch.testing.assert_close(padded, whole)


@pytest.mark.parametrize("name", ["td3", "sac", "redq", "crossq", "tqc", "td3_bc"])
def test_only_the_loss_of_the_actor_changes(name, request):
    algorithm, batch = request.getfixturevalue(name), make_batch(SIZE)
    found, expected = (
        seeded(algorithm.build(weighting=power), batch.clone()) for power in (5.0, 0.0)
    )
    assert set(found.keys()) == {*expected.keys(), "vmf_weight"}
    for key in expected.keys():  # noqa: SIM118
        is_same = torch.allclose(found[key], expected[key])
        assert is_same == (key not in ("loss_actor", "bc_loss", "lmbd")), key


@pytest.mark.parametrize("name", ["td3", "redq"])
def test_forward_weights_the_same_loss(name, request):
    algorithm, batch = request.getfixturevalue(name), make_batch(SIZE)
    found = seeded(algorithm.build(weighting=3.0), batch.clone())
    plain = seeded(unreduced(algorithm), batch.clone())["loss_actor"]
    weights = found["vmf_factor"] ** 3
    expected = (plain * weights / weights.sum()).sum() / (plain.numel() / SIZE)
    torch.testing.assert_close(found["loss_actor"], expected, rtol=1e-4, atol=1e-5)


def test_the_default_is_the_plain_loss_bit_for_bit(any_algorithm):
    losses = [seeded(any_algorithm.build(**o), make_batch(6)) for o in ({}, {"weighting": 0.0})]
    assert torch.equal(total_loss(losses[0]), total_loss(losses[1]))


def test_a_bad_power_is_an_error(td3):
    with pytest.raises(ValueError, match=r"weighting must lie in \[-100, 100\], got 101"):
        td3.build(weighting=101)
