"""The fast path of CrossQ's actor loss, with normalization layers in the critics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchrl.modules import BatchRenorm1d

from helpers.fast_losses import CROSSQ, REDQ, SEED, assert_agree, pair
from torchrl_vmfer import VMFUncertainty
from torchrl_vmfer.batch_renorm import BatchRenorm
from torchrl_vmfer.fast import backward
from torchrl_vmfer.networks import NetworkSpec


def mlp(norm, **options):
    """A critic with a normalization layer before each linear layer."""
    network = NetworkSpec(hidden=[16, 16]).make(8, 1)
    for position, features in ((4, 16), (2, 16), (0, 8)):
        network.insert(position, norm(features, **options))
    return network


def losses(norm, **options):
    torch.manual_seed(0)
    return pair(CROSSQ, critic=mlp(norm), **options)


def train_critics(loss, make_batch, steps=2):
    optimizer = torch.optim.Adam(loss.qvalue_network_params.parameters(), lr=0.01)
    torch.manual_seed(SEED)
    for seed in range(steps):
        optimizer.zero_grad()
        loss.qvalue_loss(make_batch(32, seed=seed))[0].backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("norm", "options"),
    [
        (nn.BatchNorm1d, {}),
        (BatchRenorm1d, {}),
        (BatchRenorm, {"num_qvalue_nets": 5}),
        (BatchRenorm, {"num_qvalue_nets": 3, "num_target_critics": 1}),
        (BatchRenorm, {"measure": False, "reduction": "sum"}),
    ],
    ids=str,
)
def test_losses_and_gradients_agree(make_batch, norm, options):
    """Also after updates of the critics, which change the running statistics."""
    slow, fast = losses(norm, **options)
    batch = make_batch(64)
    for _ in range(2):
        assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
        for loss in (slow, fast):
            train_critics(loss, make_batch)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert fast.fast_path == "fast"


def test_plain_critics_agree(make_batch):
    batch = make_batch(64).set("priority_weight", torch.rand(64))
    slow, fast = pair(CROSSQ, num_qvalue_nets=3)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.qvalue_loss(batch.clone()))
    assert fast.fast_path == "fast"


def test_uncertainty_agrees(make_batch):
    results = []
    for loss in losses(BatchRenorm, num_qvalue_nets=5):
        train_critics(loss, make_batch)
        torch.manual_seed(SEED)
        results.append(VMFUncertainty(loss)(make_batch(64))["vmf"])
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("change", ["double", "load", "copy", "statistics"])
def test_changes_of_the_loss_take_effect(make_batch, change):
    slow, fast = losses(BatchRenorm)
    batch = make_batch(16)
    for loss in (slow, fast):
        train_critics(loss, make_batch)
        loss.actor_loss(batch)
    if change == "double":
        slow, fast = slow.double(), fast.double()
        batch = batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)
    elif change == "load":
        other = losses(BatchRenorm, seed=7)[0]
        train_critics(other, make_batch, steps=3)
        for loss in (slow, fast):
            loss.load_state_dict(other.state_dict())
    elif change == "copy":
        original, fast = fast, copy.deepcopy(fast)
        original.qvalue_network_params.data.zero_()
    elif change == "statistics":
        for loss in (slow, fast):
            key = ("module", "0", "running_mean")
            loss.qvalue_network_params.data.get(key).add_(0.5)
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert fast.fast_path == "fast"


def test_the_critics_are_in_training_mode_afterwards(make_batch):
    for loss in losses(BatchRenorm):
        loss.eval()
        loss.actor_loss(make_batch(16))
        assert all(part.training for part in loss.qvalue_network.modules())


def test_both_paths_learn_the_same(make_batch):
    pairs = losses(BatchRenorm, num_qvalue_nets=3)
    for loss in pairs:
        torch.manual_seed(SEED)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.05)
        for seed in range(10):
            for update in (loss.qvalue_loss, loss.actor_loss):
                optimizer.zero_grad()
                backward(update(make_batch(32, seed=seed))[0])
                optimizer.step()
    for name, value in pairs[0].state_dict().items():
        found = pairs[1].state_dict()[name]
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5, msg=name)


def test_normalization_without_statistics_uses_the_general_path(make_batch):
    torch.manual_seed(0)
    slow, fast = pair(CROSSQ, critic=mlp(nn.BatchNorm1d, track_running_stats=False))
    with pytest.warns(UserWarning, match="has no running statistics or weights"):
        assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(16)))


def test_a_loss_with_critics_in_training_mode_uses_the_general_path():
    loss = REDQ.build(critic=mlp(BatchRenorm), fast=True)
    assert loss.fast_path == "BatchRenorm is not a plain layer"
