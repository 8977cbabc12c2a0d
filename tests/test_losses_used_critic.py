"""The factors of the losses beyond TD3 and SAC, and the critic e that each of them uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.modules import MLP

from helpers.losses import SEED, critic_named, seeded
from torchrl_vmfer import VMFUncertainty

WORDS = ("first", "min", "mean")
FOUR = ["redq", "crossq", "tqc", "td3_bc"]  # with more than two critics


def expected_factors(brute_force, loss, batch):
    """Computes the factors of each word and the resultant length, by brute force."""
    action = brute_force.policy_action(loss, batch, seed=SEED)
    gradients = brute_force.action_gradients(loss, batch, action)
    values = brute_force.critic_values(loss, batch, action)
    factors = {
        word: brute_force.sampling_factor(gradients, critic_named(word, values)) for word in WORDS
    }
    directions = gradients.double() / gradients.double().norm(dim=-1, keepdim=True)
    return factors, directions.mean(0).norm(dim=-1)


@pytest.mark.parametrize("name", FOUR)
def test_the_factors_and_lengths_equal_brute_force(name, request, brute_force, make_batch):
    algorithm = request.getfixturevalue(name)
    loss, batch = algorithm.build(), make_batch((3, 4))
    _, metadata = seeded(loss.actor_loss, batch.clone())
    factors, length = expected_factors(brute_force, loss, batch)
    found = metadata["vmf_factor"].double()
    assert found.shape == batch.batch_size
    for word in WORDS:
        difference = (found - factors[word]).abs().max()
        if word == algorithm.used:
            assert difference < 1e-5
        else:
            assert difference > 1e-2, f"The batch cannot tell {word} from {algorithm.used}."
    found = metadata["vmf_resultant_length"].double()
    torch.testing.assert_close(found, length, rtol=0, atol=1e-5)


def test_the_factors_of_cql_equal_brute_force(cql, brute_force, make_batch):
    loss, batch = cql.build(), make_batch((3, 4))
    _, metadata = seeded(loss.actor_loss, batch.clone())
    factors, length = expected_factors(brute_force, loss, batch)
    found = metadata["vmf_factor"].double()
    torch.testing.assert_close(found, factors["min"], rtol=0, atol=1e-5)
    assert (found - factors["mean"]).abs().max() > 1e-3
    # With two critics, e = the first would give the same factors.
    assert loss.used == "min"
    found = metadata["vmf_resultant_length"].double()
    torch.testing.assert_close(found, length, rtol=0, atol=1e-5)


def test_in_double_precision_the_factors_agree_to_1e_12(ensemble, brute_force, make_batch):
    loss, batch = ensemble.build().double(), make_batch(6).double()
    _, metadata = seeded(loss.actor_loss, batch.clone())
    factors, _ = expected_factors(brute_force, loss, batch)
    assert metadata["vmf_factor"].dtype == torch.float64
    expected = factors[ensemble.used]
    torch.testing.assert_close(metadata["vmf_factor"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FOUR)
def test_a_chosen_critic_changes_the_factors_and_not_the_loss(
    name, request, brute_force, make_batch
):
    algorithm = request.getfixturevalue(name)
    expected_loss, _ = seeded(algorithm.build().actor_loss, make_batch(12))
    factors, _ = expected_factors(brute_force, algorithm.build(), make_batch(12))
    for word in WORDS:
        loss = algorithm.build(used=word)
        value, metadata = seeded(loss.actor_loss, make_batch(12))
        assert torch.equal(value, expected_loss)
        found = metadata["vmf_factor"].double()
        torch.testing.assert_close(found, factors[word], rtol=0, atol=1e-5)
        statistics = seeded(VMFUncertainty(loss), make_batch(12))["vmf", "factor"].double()
        torch.testing.assert_close(statistics, factors[word], rtol=0, atol=1e-5)


def test_the_uncertainty_of_a_loss_uses_its_critic_unless_told_otherwise(any_algorithm):
    assert VMFUncertainty(any_algorithm.build()).used == any_algorithm.used
    assert VMFUncertainty(any_algorithm.build(any_algorithm.stock_class)).used == any_algorithm.used
    other = "mean" if any_algorithm.used == "min" else "min"
    assert VMFUncertainty(any_algorithm.build(used=other)).used == other
    assert VMFUncertainty(any_algorithm.build(used=other), used="first").used == "first"


def test_an_unknown_word_is_rejected(any_algorithm):
    with pytest.raises(ValueError, match="used must be 'first', 'min' or 'mean', got 'max'"):
        any_algorithm.build(used="max")
    with pytest.raises(ValueError, match="got 'max'"):
        VMFUncertainty(any_algorithm.build(), used="max")


@pytest.mark.parametrize("name", ["redq", "crossq", "tqc", "cql"])
def test_the_entropy_does_not_affect_the_factors(name, request, make_batch):
    algorithm = request.getfixturevalue(name)
    (small, factors), (large, other_factors) = (
        seeded(algorithm.build(alpha_init=alpha).actor_loss, make_batch(7)) for alpha in (0.2, 9.0)
    )
    assert not torch.isclose(small, large)
    assert torch.equal(factors["vmf_factor"], other_factors["vmf_factor"])


def test_behavior_cloning_does_not_affect_the_factors(td3_bc, make_batch):
    batch = make_batch(7)
    other = batch.clone().set("action", -batch["action"])
    loss = td3_bc.build()
    (value, factors), (moved, other_factors) = map(loss.actor_loss, (batch, other))
    assert not torch.isclose(value, moved)
    assert torch.equal(factors["vmf_factor"], other_factors["vmf_factor"])


class ScaledQuantiles(nn.Module):
    """A critic of TQC whose quantiles are ``scale`` times as far from their mean."""

    def __init__(self, scale):
        super().__init__()
        self.network = MLP(in_features=8, out_features=6, num_cells=[16])
        self.scale = scale

    def forward(self, *inputs):
        quantiles = self.network(*inputs)
        mean = quantiles.mean(-1, keepdim=True)
        return mean + self.scale * (quantiles - mean)


def test_the_spread_of_quantiles_does_not_affect_the_factors_of_tqc(tqc, make_batch):
    critic_losses, factors = [], []
    for scale in (1.0, 5.0):
        network = seeded(ScaledQuantiles, scale)
        loss = tqc.build(critic=tqc.critic(network=network))
        critic_losses.append(seeded(loss.qvalue_v2_loss, make_batch(7))[0])
        factors.append(seeded(loss.actor_loss, make_batch(7))[1]["vmf_factor"])
    assert not torch.isclose(*critic_losses, rtol=0.1)
    torch.testing.assert_close(*factors, rtol=0, atol=1e-5)
