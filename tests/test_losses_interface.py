"""Construction, copies, states, outputs and rejected arguments of the losses."""

from __future__ import annotations

import copy

import pytest
import torch
from torchrl.data import LazyTensorStorage

from helpers import brute_force
from helpers.losses import SEED, assert_same, make_batch, perturb, seeded
from torchrl_vmfer import ActorCriticReplayBuffer, VMFUncertainty


def keywords(loss, batch):
    """Returns the entries of a batch as keyword arguments of a loss."""
    return {"_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys}


def with_log_prob(batch):
    """Adds an entry that TorchRL's REDQ lists among its inputs but does not read."""
    return batch.set("action_log_prob", torch.zeros(batch.shape))


# --- Outputs.


def test_forward_and_update_tensordict_priority_store_the_factors(any_algorithm):
    loss = any_algorithm.build()
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(50), batch_size=16)
    buffer.extend(make_batch(50))
    batch = buffer.sample()
    assert set(loss(batch).keys()) >= set(loss.out_keys)
    buffer.update_tensordict_priority(batch)
    weight = torch.ones(50, dtype=torch.float64)
    weight[batch["index"]] = batch["vmf_factor"].double()
    torch.testing.assert_close(buffer.actor_sampler.probabilities(), weight / weight.sum())


@pytest.mark.parametrize(
    ("name", "count"),
    [("td3", 8), ("sac", 5), ("redq", 9), ("crossq", 5), ("tqc", 5), ("td3_bc", 8), ("cql", 7)],
)
def test_a_call_with_keywords_returns_torchrls_tuple(name, count, request):
    """TD3's tuple also has the factors."""
    algorithm = request.getfixturevalue(name)
    stock, vmf = algorithm.pair()
    batch = with_log_prob(make_batch(20))
    outputs = seeded(lambda: vmf(**keywords(vmf, batch)))
    keys = vmf.out_keys if name == "td3" else stock.out_keys
    assert len(outputs) == len(keys) == count
    expected = seeded(vmf, batch.clone())
    for key, output in zip(keys, outputs, strict=True):
        assert_same(algorithm, output, expected[key])


def test_selected_keys_are_returned_until_they_are_reset(any_algorithm):
    loss, batch = any_algorithm.build(), with_log_prob(make_batch(20))
    names = loss.out_keys
    expected = seeded(loss, batch.clone())
    loss.select_out_keys("loss_actor", "vmf_factor")
    assert loss.out_keys == ["loss_actor", "vmf_factor"]
    value, factor = seeded(lambda: loss(**keywords(loss, batch)))
    assert torch.equal(value, expected["loss_actor"])
    assert torch.equal(factor, expected["vmf_factor"])
    assert set(seeded(loss, batch).keys()) == {"loss_actor", "vmf_factor"}
    loss.reset_out_keys()
    assert loss.out_keys == names
    assert set(seeded(loss, batch).keys()) == set(expected.keys())


# As in the table of docs/torchrl.md.
TEMPERATURE_LOSSES = {
    "redq": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]).mean(),
    "crossq": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]),
    "tqc": lambda loss, metadata: loss.alpha_loss(metadata["log_prob"]).mean(),
    "td3_bc": lambda loss, metadata: 0,
    "cql": lambda loss, metadata: loss.alpha_loss(metadata)[0],
}


def test_the_losses_of_separate_batches_train_all_parameters(ensemble):
    loss = ensemble.build()
    total, _ = loss.critic_loss(make_batch(12, seed=1))
    actor_batch = make_batch(9, seed=2).select("observation", "action")
    actor_loss, metadata = loss.actor_loss(actor_batch)
    (total + actor_loss + TEMPERATURE_LOSSES[ensemble.name](loss, metadata)).backward()
    assert metadata["vmf_factor"].shape == (9,)
    for name, param in loss.named_parameters():
        assert param.grad is not None, name
        assert param.grad.abs().sum() > 0, name


# --- Construction and state.


def test_a_list_of_critics_keeps_their_parameters(algorithm):
    torch.manual_seed(3)
    critics = [algorithm.critic() for _ in range(3)]
    # Stacking removes the parameters from the modules, so the reference is computed first.
    references = copy.deepcopy(critics)
    loss, batch = algorithm.build(critic=critics, num_qvalue_nets=3), make_batch(10)
    _, metadata = seeded(loss.actor_loss, batch.clone())
    action = brute_force.policy_action(loss, batch, seed=SEED).detach().requires_grad_()
    inputs = batch.copy().set("action", action)
    values = torch.cat([critic(inputs.copy())["state_action_value"] for critic in references], -1).T
    gradients = torch.stack(
        [torch.autograd.grad(-value.sum(), action, retain_graph=True)[0] for value in values]
    )
    used = brute_force.critic_named(algorithm.used, values[:2])
    expected = brute_force.sampling_factor(gradients, used)
    torch.testing.assert_close(metadata["vmf_factor"].double(), expected, rtol=0, atol=1e-5)


def test_the_state_is_compatible_with_torchrls(any_algorithm):
    stock = any_algorithm.build(any_algorithm.stock_class, seed=0)
    vmf = any_algorithm.build(seed=1, directions="pre_tanh")
    batch = make_batch(10)
    # SAC creates the buffer of its target entropy at its first use.
    stock(batch.clone())
    getattr(vmf, "target_entropy", None)
    vmf.load_state_dict(stock.state_dict())
    expected, losses = (seeded(loss, batch.clone()) for loss in (stock, vmf))
    for name in ("loss_actor", "loss_qvalue"):
        assert_same(any_algorithm, losses[name], expected[name])
    assert vmf.state_dict().keys() == stock.state_dict().keys()


def test_a_deep_copy_is_independent(any_algorithm):
    loss = any_algorithm.build()
    twin = copy.deepcopy(loss)
    expected, metadata = seeded(loss.actor_loss, make_batch(10))
    value, twin_metadata = seeded(twin.actor_loss, make_batch(10))
    assert torch.equal(value, expected)
    assert torch.equal(twin_metadata["vmf_factor"], metadata["vmf_factor"])
    for params in (twin.qvalue_network_params, twin.actor_network_params):
        perturb(params, slice(None))
    assert not torch.isclose(seeded(twin.actor_loss, make_batch(10))[0], expected)
    assert torch.equal(seeded(loss.actor_loss, make_batch(10))[0], expected)


def test_the_uncertainty_of_a_loss_uses_its_critic_unless_told_otherwise(any_algorithm):
    assert VMFUncertainty(any_algorithm.build()).used == any_algorithm.used
    assert VMFUncertainty(any_algorithm.build(any_algorithm.stock_class)).used == any_algorithm.used
    other = "mean" if any_algorithm.used == "min" else "min"
    assert VMFUncertainty(any_algorithm.build(used=other)).used == other
    assert VMFUncertainty(any_algorithm.build(used=other), used="first").used == "first"


# --- Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"used": "max"}, "used must be 'first', 'min' or 'mean', got 'max'"),
        ({"directions": "tanh"}, "directions must be 'action' or 'pre_tanh', got 'tanh'"),
        ({"num_targets": 2}, "num_targets"),
    ],
)
def test_every_loss_rejects_wrong_arguments(any_algorithm, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        any_algorithm.build(**options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("td3", {"num_target_critics": 0}, "num_target_critics must be .* got 0"),
        ("sac", {"num_target_critics": -1}, "num_target_critics must be .* got -1"),
        ("td3", {"actor_noise": -0.1}, r"at least 0.*-0\.1"),
        ("td3", {"actor_noise_clip": -0.5}, r"at least 0.*-0\.5"),
        ("td3", {"actor_noise": 0.2, "measure": False}, r"actor_noise=0\.2 requires measure"),
        ("td3", {"objective": "min"}, "objective must be 'first' or 'mean', got 'min'"),
        ("td3", {"entropy_gradient": True}, "entropy_gradient"),
        ("sac", {"actor_noise": 1}, "actor_noise"),
        ("td3", {"bounds": None}, "bounds"),
        ("redq", {"num_target_critics": None}, "All critics of VMFREDQLoss .* leave out"),
        ("tqc", {"num_target_critics": 2}, "All critics of VMFTQCLoss .* leave out"),
    ],
)
def test_a_loss_rejects_wrong_arguments(name, options, message, request):
    with pytest.raises((TypeError, ValueError), match=message):
        request.getfixturevalue(name).build(**options)


def test_td3_bc_requires_the_stored_action(td3_bc):
    with pytest.raises(KeyError, match=r"use sample_actor\(keys="):
        td3_bc.build().actor_loss(make_batch(5).select("observation"))
