"""The fast path of REDQ, TQC and TD3+BC against TorchRL's: losses, gradients, random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchrl.modules import MLP
from torchrl.objectives import SoftUpdate

from helpers.fast_losses import REDQ, SEED, TD3_BC, TOLERANCE, TQC, assert_agree, pair
from torchrl_vmfer import VMFUncertainty
from torchrl_vmfer.fast import backward, tqc
from torchrl_vmfer.fast.soft_update import FastSoftUpdate

FALLS_BACK = "uses TorchRL's general path"
OPTIONS = [
    {"num_qvalue_nets": 2},
    {"num_qvalue_nets": 5},
    {"num_qvalue_nets": 5, "measure": False},
    {"activation": nn.Tanh, "used": "min"},
    {"reduction": "sum"},
    {"cells": ()},
]
EXTRA_OPTIONS = [
    (TD3_BC, {"num_qvalue_nets": 3, "num_target_critics": 3}),
    (TD3_BC, {"loss_function": "l2"}),
    (TD3_BC, {"alpha": 0.0}),
    (REDQ, {"num_qvalue_nets": 5, "sub_sample_len": 3, "loss_function": "l1"}),
    (REDQ, {"alpha_init": 0.05, "min_alpha": 0.1}),
    (TQC, {"num_qvalue_nets": 3, "top_quantiles_to_drop_per_net": 0}),
]


def label(value):
    return getattr(value, "name", str(value))


@pytest.fixture(params=[TD3_BC, REDQ, TQC], ids=label)
def algorithm(request):
    return request.param


def assert_both_updates_agree(algorithm, slow, fast, batch):
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert fast.fast_path == "fast"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_gradients_agree(algorithm, make_batch, options):
    assert_both_updates_agree(algorithm, *pair(algorithm, **options), make_batch(64))


@pytest.mark.parametrize(("algorithm", "options"), EXTRA_OPTIONS, ids=label)
def test_losses_and_gradients_agree_with_options_of_one_loss(algorithm, make_batch, options):
    assert_both_updates_agree(algorithm, *pair(algorithm, **options), make_batch(64))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_agree_with_importance_weights(algorithm, make_batch, reduction):
    batch = make_batch(64).set("priority_weight", torch.rand(64))
    assert_both_updates_agree(algorithm, *pair(algorithm, reduction=reduction), batch)


@pytest.mark.parametrize("critics", [2, 5])
def test_uncertainty_agrees(algorithm, make_batch, critics):
    results, states = [], []
    for loss in pair(algorithm, num_qvalue_nets=critics):
        torch.manual_seed(SEED)
        results.append(VMFUncertainty(loss)(make_batch(64))["vmf"])
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-4, atol=1e-4, msg=name)


def test_paths_agree_over_many_updates(algorithm, make_batch):
    """Detects stale references to parameters and targets in either path."""
    losses = pair(algorithm, num_qvalue_nets=3)
    for loss, targets in zip(losses, (SoftUpdate, FastSoftUpdate), strict=True):
        updater = targets(loss, tau=0.3)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.05)
        torch.manual_seed(SEED)
        for seed in range(10):
            batch = make_batch(32, seed=seed)
            for update in (algorithm.critic_loss, algorithm.loss_class.actor_loss):
                optimizer.zero_grad()
                backward(update(loss, batch)[0])
                optimizer.step()
            updater.step()
    slow, fast = (loss.state_dict() for loss in losses)
    assert slow.keys() == fast.keys()
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("change", ["double", "load", "copy", "measure"])
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
    assert_both_updates_agree(algorithm, slow, fast, batch)


def test_forward_agrees(algorithm, make_batch):
    """REDQ's ``forward`` has no fast path: it evaluates all critics at once."""
    batch = make_batch(16)
    results = []
    for loss in pair(algorithm):
        torch.manual_seed(SEED)
        results.append(loss(batch.clone()))
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, **TOLERANCE, msg=name)


def test_other_critics_use_the_general_path(algorithm, make_batch):
    network = MLP(8, algorithm.outputs, num_cells=[16], norm_class=nn.BatchNorm1d,
                  norm_kwargs={"num_features": 16, "track_running_stats": False})  # fmt: skip
    slow, fast = pair(algorithm, critic=network)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(16)))
    assert fast.fast_path == "BatchNorm1d is not a plain layer"


@pytest.mark.parametrize(
    ("algorithm", "options", "reason"),
    [
        (TQC, {"skip_done_states": True}, "skip_done_states=True"),
        (REDQ, {"gSDE": True}, "gSDE=True"),
    ],
    ids=label,
)
def test_other_options_have_no_fast_path(algorithm, options, reason):
    assert algorithm.build(fast=True, **options).fast_path == reason


@pytest.mark.parametrize("key", ["observation", "action"])
@pytest.mark.filterwarnings(f"ignore:.*{FALLS_BACK}")
def test_entries_that_require_gradients_use_the_general_path(algorithm, make_batch, key):
    slow, fast = pair(algorithm)
    batch = make_batch(16)
    batch[key].requires_grad_()
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch))
    assert "requires gradients" in fast.fast_path


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_td3_bc_names_a_missing_action(make_batch, fast, measure):
    loss = TD3_BC.build(fast=fast, measure=measure)
    cure = r"no 'action': use sample_actor\(keys=\['observation', 'action'\]\)"
    with pytest.raises(KeyError, match=cure):
        loss.actor_loss(make_batch(4).select("observation"))


@pytest.mark.parametrize("fast", [False, True])
def test_a_target_without_quantiles_is_rejected(make_batch, fast):
    loss = TQC.build(fast=fast, top_quantiles_to_drop_per_net=7)
    with pytest.raises(ValueError, match="top_quantiles_to_drop_per_net"):
        loss.qvalue_v2_loss(make_batch(4))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_quantile_huber_of_large_values(monkeypatch, is_compiled):
    """Both the quadratic and the linear parts, also at the kinks."""
    if not is_compiled:
        monkeypatch.setattr(tqc, "load_kernels", lambda: None)
    quantiles = (1e3 + torch.arange(-4.0, 5.0) / 2).expand(2, 1, 9).clone()
    targets = torch.tensor([[1e3 - 3, 1e3 - 1, 1e3, 1e3 + 0.25, 1e3 + 2]])
    loss, slope, error = tqc.quantile_huber(quantiles, targets)
    found = []
    for tau, quantile in zip((torch.arange(9) + 0.5) / 9, quantiles[0, 0].double(), strict=True):
        quantile.requires_grad_()
        distance = nn.functional.huber_loss(
            quantile.expand(5), targets[0].double(), reduction="none"
        )
        weight = torch.where(targets[0] < quantile, 1 - tau, tau).detach()
        value = (weight * distance).mean() / 9
        found.append((value, torch.autograd.grad(value, quantile)[0], (targets - quantile).abs()))
    losses, slopes, errors = (torch.stack(part).detach() for part in zip(*found, strict=True))
    for critic in range(2):
        torch.testing.assert_close(loss[critic], losses.sum().float()[None], **TOLERANCE)
        torch.testing.assert_close(slope[critic], slopes.float()[None], **TOLERANCE)
        torch.testing.assert_close(error[critic], errors.mean().float()[None], **TOLERANCE)


@pytest.mark.parametrize("shape", [(5, 256, 25, 100), (1, 3, 1, 1), (2, 2, 300, 7)], ids=str)
def test_compiled_and_general_quantile_huber_agree(monkeypatch, shape):
    critics, rows, count, num_targets = shape
    quantiles, targets = 3 * torch.randn(critics, rows, count), 3 * torch.randn(rows, num_targets)
    found = tqc.quantile_huber(quantiles, targets)
    monkeypatch.setattr(tqc, "load_kernels", lambda: None)
    expected = tqc.quantile_huber(quantiles.double(), targets.double())
    for values, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(values, wanted.float(), rtol=1e-5, atol=1e-6)
