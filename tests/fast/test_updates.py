"""The fast path against TorchRL's: same losses, gradients and random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import SoftUpdate

from helpers.fast_losses import SEED, TOLERANCE, assert_agree, pair
from torchrl_vmfer import VMFUncertainty
from torchrl_vmfer.fast.soft_update import FastSoftUpdate

OPTIONS = [
    {},
    {"measure": False},
    {"num_qvalue_nets": 1},
    {"num_qvalue_nets": 5},
    {"num_qvalue_nets": 5, "measure": False},
    {"num_qvalue_nets": 3, "num_target_critics": 3},
    {"activation": nn.Tanh},
    {"activation": nn.ELU, "num_qvalue_nets": 3},
    {"loss_function": "l2"},
    {"loss_function": "l1"},
    {"reduction": "sum"},
    {"cells": ()},
    {"cells": (16, 16, 16)},
    {"observation": ("agent", "state"), "action": ("agent", "move")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_gradients_agree(algorithm, make_batch, options):
    slow, fast = pair(algorithm, **options)
    keys = {key: options[key] for key in ("observation", "action") if key in options}
    batch = make_batch(64, **keys)
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert fast.fast_path == "fast"
    assert slow.fast_path == "fast=False"


def test_losses_agree_with_importance_weights(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch(64).set("priority_weight", torch.rand(64))
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))


def test_losses_agree_with_actor_noise(td3, make_batch):
    slow, fast = pair(td3, actor_noise=0.4, actor_noise_clip=0.5)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(64)))


def test_losses_agree_near_saturation(sac, make_batch):
    slow, fast = pair(sac)
    for loss in (slow, fast):
        loss.actor_network_params.data.mul_(6)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(64)))


@pytest.mark.parametrize("critics", [2, 5])
def test_uncertainty_agrees(algorithm, make_batch, critics):
    results, states = [], []
    for loss in pair(algorithm, num_qvalue_nets=critics, measure=False):
        torch.manual_seed(SEED)
        results.append(VMFUncertainty(loss)(make_batch(64))["vmf"])
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-4, atol=1e-4, msg=name)


def test_paths_agree_over_many_updates(algorithm, make_batch):
    """Detects stale references to parameters and targets in either path."""
    losses = pair(algorithm)
    for loss, targets in zip(losses, (SoftUpdate, FastSoftUpdate), strict=True):
        updater = targets(loss, tau=0.3)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.05)
        torch.manual_seed(SEED)
        for seed in range(10):
            batch = make_batch(32, seed=seed)
            value = algorithm.critic_loss(loss, batch)[0] + loss.actor_loss(batch)[0]
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            updater.step()
    slow, fast = (loss.state_dict() for loss in losses)
    assert slow.keys() == fast.keys()
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_soft_update_equals_torchrl(algorithm):
    losses = pair(algorithm)
    for loss, updater in zip(losses, (SoftUpdate, FastSoftUpdate), strict=True):
        targets = updater(loss, tau=0.1)
        torch.manual_seed(SEED)
        for parameter in loss.parameters():
            parameter.data += torch.randn_like(parameter)
        targets.step()
        targets.step()
    for name, value in losses[0].state_dict().items():
        torch.testing.assert_close(losses[1].state_dict()[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("change", ["double", "load", "copy", "measure", "estimator"])
def test_changes_of_the_loss_take_effect(algorithm, make_batch, change):
    slow, fast = pair(algorithm)
    batch = make_batch(16)
    for loss in (slow, fast):
        algorithm.critic_loss(loss, batch)
        loss.actor_loss(batch)
    if change == "double":
        slow, fast = slow.double(), fast.double()
        batch = batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)
    elif change == "load":
        state = algorithm.build(seed=7).state_dict()
        for loss in (slow, fast):
            loss.load_state_dict(state)
    elif change == "copy":
        original, fast = fast, copy.deepcopy(fast)
        original.qvalue_network_params.data.zero_()
        original.target_qvalue_network_params.data.zero_()
    elif change == "measure":
        slow.measure = fast.measure = False
    elif change == "estimator":
        slow.make_value_estimator(gamma=0.3)
        fast.make_value_estimator(gamma=0.3)
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


def test_soft_update_finds_parameters_that_moved_in_memory(algorithm):
    losses = pair(algorithm)
    for loss, updater in zip(losses, (SoftUpdate, FastSoftUpdate), strict=True):
        targets = updater(loss, tau=0.5)
        loss.double()
        for parameter in loss.parameters():
            parameter.data += 1
        targets.step()
    for name, value in losses[0].state_dict().items():
        torch.testing.assert_close(losses[1].state_dict()[name], value)


def test_parameters_that_moved_in_memory_are_found(algorithm, make_batch):
    _, fast = pair(algorithm)
    batch = make_batch(16)
    algorithm.critic_loss(fast, batch)
    fast.actor_loss(batch)
    for parameter in fast.parameters():
        parameter.data = parameter.data + 0.1
    slow, _ = pair(algorithm)  # TorchRL's loss still refers to the old memory
    slow.load_state_dict(fast.state_dict())
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


def test_batches_without_terminated_use_done(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch(32)
    del batch["next", "terminated"]
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))


def test_biases_learn_if_weights_are_frozen(td3, make_batch):
    slow, fast = pair(td3)
    for loss in (slow, fast):
        for name, parameter in loss.named_parameters():
            if name.endswith("weight"):
                parameter.requires_grad_(False)
    assert_agree(slow, fast, lambda loss: loss.value_loss(make_batch(16)))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_actor_loss_agrees_with_weights_in_the_batch(algorithm, make_batch, reduction):
    batch = make_batch(16).set("priority_weight", torch.rand(16))
    values = []
    for loss in pair(algorithm, reduction=reduction):
        torch.manual_seed(SEED)
        values.append(loss.actor_loss(batch.clone())[0])
    torch.testing.assert_close(values[1], values[0], **TOLERANCE)


def changed(batch, key, change):
    return batch.clone().set(key, change(batch[key]))


@pytest.mark.filterwarnings("ignore:.*uses TorchRL's general path")
@pytest.mark.parametrize("key", ["action", ("next", "reward"), ("next", "observation")], ids=str)
def test_entries_that_require_gradients(algorithm, make_batch, key):
    slow, fast = pair(algorithm)
    batch = changed(make_batch(16), key, lambda entry: entry.clone().requires_grad_())
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch))


def test_rewards_and_weights_in_double_precision(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = changed(make_batch(16), ("next", "reward"), torch.Tensor.double)
    batch["priority_weight"] = torch.rand(16, dtype=torch.float64)
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


@pytest.mark.filterwarnings("ignore:.*uses TorchRL's general path")
def test_options_that_change_later_take_effect(algorithm, make_batch):
    slow, fast = pair(algorithm)
    for name, value in (("loss_function", "l1"), ("reduction", "sum"), ("reduction", "none")):
        results = []
        for loss in (slow, fast):
            algorithm.critic_loss(loss, make_batch(16))
            setattr(loss, name, value)
            torch.manual_seed(SEED)
            results.append(algorithm.critic_loss(loss, make_batch(16))[0])
        torch.testing.assert_close(results[1], results[0], **TOLERANCE)


def test_discount_and_number_of_critics_that_change_later_take_effect(algorithm, make_batch):
    slow, fast = pair(algorithm, num_qvalue_nets=3)
    batch = make_batch(16)
    for loss in (slow, fast):
        algorithm.critic_loss(loss, batch.clone())
        loss.value_estimator.gamma.fill_(0.5)
        loss.num_target_critics = 1
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


def test_weights_of_another_shape_are_rejected(algorithm, make_batch):
    _, fast = pair(algorithm)
    batch = make_batch(16).set("priority_weight", torch.rand(16, 1))
    with pytest.raises(ValueError, match=r"\[16, 1\] for a batch of \[16\]"):
        algorithm.critic_loss(fast, batch)


@pytest.mark.parametrize("last", [nn.ELU, nn.Hardtanh, nn.ReLU])
def test_in_place_activations_after_the_last_layer(td3, make_batch, last):
    def build(fast, inplace):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3), last(inplace=inplace)
        )
        actor = TensorDictModule(network, ["observation"], ["action"])
        loss = td3.vmf_class(actor, td3.critic(activation=nn.ReLU), **td3.defaults, fast=fast)
        loss.make_value_estimator(gamma=0.9)
        return loss

    slow, fast = build(False, False), build(True, True)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(16)))
    assert fast.fast_path == "fast"
