"""The fast path against TorchRL's own: same losses, same gradients, same random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import SoftUpdate, ValueEstimators

from torchrl_vmfer import VMFUncertainty
from torchrl_vmfer.fast import FastSoftUpdate
from torchrl_vmfer.plain_network import NotPlainError, PlainNetwork

SEED = 5
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def gradients(loss, value):
    loss.zero_grad()
    value.backward()
    return {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}


def assert_agree(slow, fast, update):
    """One update by either path: loss, metadata, every gradient, and the random generator."""
    torch.manual_seed(SEED)
    expected, expected_metadata = update(slow)
    expected_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    value, metadata = update(fast)
    assert torch.equal(torch.get_rng_state(), expected_state)
    torch.testing.assert_close(value, expected, **TOLERANCE)
    assert metadata.keys() == expected_metadata.keys()
    for name, entry in expected_metadata.items():
        if name == "state_action_value_actor" and not fast.measure:
            entry = entry[:1]  # the others are not asked
        torch.testing.assert_close(metadata[name], entry.detach(), **TOLERANCE)
    expected_gradients, found = gradients(slow, expected), gradients(fast, value)
    assert found.keys() == expected_gradients.keys()
    assert found
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(found[name], gradient, **TOLERANCE, msg=name)


def pair(algorithm, **options):
    slow, fast = (algorithm.build(fast=fast, **options) for fast in (False, True))
    return slow, fast


OPTIONS = [
    {},
    {"measure": False},
    {"num_qvalue_nets": 1},
    {"num_qvalue_nets": 5},
    {"num_qvalue_nets": 5, "measure": False},
    {"num_qvalue_nets": 3, "num_target_critics": 3},
    {"loss_function": "l2"},
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
    assert fast._fast is not None
    assert slow._fast is None


def test_losses_agree_with_importance_weights(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch(64).set("priority_weight", torch.rand(64))
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shifted_valid", torch.arange(64) % 3 > 0),
        (("collector", "mask"), torch.arange(64).unsqueeze(-1) % 3 > 0),
        ("steps_to_next_obs", torch.arange(64).unsqueeze(-1) % 3 + 1),
    ],
    ids=str,
)
def test_masks_and_several_steps_go_by_the_stock_path(algorithm, make_batch, key, value):
    slow, fast = pair(algorithm)
    batch = make_batch(64).set(key, value)
    torch.manual_seed(SEED)
    expected = algorithm.critic_loss(slow, batch.clone())[0]
    torch.manual_seed(SEED)
    assert torch.equal(algorithm.critic_loss(fast, batch.clone())[0], expected)
    torch.manual_seed(SEED)
    plain = algorithm.critic_loss(slow, make_batch(64))[0]
    assert not torch.equal(plain, expected)  # or else nothing would be tested


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


def test_paths_stay_together_over_many_updates(algorithm, make_batch):
    """Catches stale references: parameters and targets that one path sees move and one not."""
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
def test_follows_changes_of_the_loss(algorithm, make_batch, change):
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


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, observation, action):
        return self.layer(torch.cat([observation, action], -1)).sin()


def with_layer_norm():
    return MLP(8, 1, num_cells=[16], norm_class=nn.LayerNorm, norm_kwargs={"normalized_shape": 16})


@pytest.mark.parametrize(
    "network",
    [with_layer_norm, Unknown],
)
def test_other_critics_go_by_the_stock_path(algorithm, make_batch, network):
    torch.manual_seed(0)
    critic = algorithm.critic(network=network())
    slow, fast = pair(algorithm, critic=critic)
    batch = make_batch(16)
    torch.manual_seed(SEED)
    expected = slow.actor_loss(batch.clone())[0]
    torch.manual_seed(SEED)
    assert torch.equal(fast.actor_loss(batch.clone())[0], expected)
    assert fast._fast is None


@pytest.mark.parametrize(
    "options", [{"entropy_gradient": True}, {"skip_done_states": True}], ids=str
)
def test_other_options_go_by_the_stock_path(sac, make_batch, options):
    _, fast = pair(sac, **options)
    fast.actor_loss(make_batch(16))
    assert fast._fast is None


def test_batches_of_several_dimensions_go_by_the_stock_path(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch((4, 3))
    torch.manual_seed(SEED)
    expected = slow.actor_loss(batch.clone())[0]
    torch.manual_seed(SEED)
    assert torch.equal(fast.actor_loss(batch.clone())[0], expected)
    fast.actor_loss(make_batch(5))
    assert fast._fast is not None


def test_actor_with_other_bounds_goes_by_the_stock_path(sac, make_batch):
    torch.manual_seed(0)
    network = nn.Sequential(MLP(5, 6, num_cells=[8]), sac.actor().module[0].module[1])
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    )
    loss = sac.vmf_class(actor, sac.critic(), target_entropy=-3.0, fast=True)
    loss.actor_loss(make_batch(16))
    assert loss._fast is None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU, nn.GELU])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_network_equals_the_modules(activation, bias):
    torch.manual_seed(0)
    networks = [
        nn.Sequential(
            nn.Linear(4, 8, bias=bias), activation(), nn.Linear(8, 8, bias=bias), activation(),
            nn.Linear(8, 1, bias=bias),
        )
        for _ in range(3)
    ]  # fmt: skip

    params = torch.stack([TensorDict.from_module(n, as_module=False) for n in networks])
    inputs = torch.randn(3, 10, 4)
    expected = torch.stack([n(x) for n, x in zip(networks, inputs, strict=True)])
    torch.testing.assert_close(PlainNetwork(networks[0], params)(inputs), expected, **TOLERANCE)


def test_inputs_are_not_changed_in_place():

    network = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    params = TensorDict.from_module(network, as_module=False)
    inputs = torch.randn(10, 4)
    before = inputs.clone()
    result = PlainNetwork(network, params)(inputs)
    assert torch.equal(inputs, before)
    torch.testing.assert_close(result, network(inputs))


def test_a_network_that_is_not_plain_is_refused():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    params = TensorDict.from_module(network, as_module=False)
    with pytest.raises(NotPlainError, match="BatchNorm1d"):
        PlainNetwork(network, params)
    assert issubclass(NotPlainError, TypeError)


def test_a_module_that_comes_twice_counts_twice():
    """``named_children`` passes over the second."""
    act = nn.ReLU()
    network = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 1))
    params = TensorDict.from_module(network, as_module=False)
    inputs = torch.randn(10, 4)
    torch.testing.assert_close(PlainNetwork(network, params)(inputs), network(inputs))


def test_hooks_go_by_the_stock_path():
    network = nn.Sequential(nn.Linear(4, 4))
    network[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(NotPlainError, match="hooks"):
        PlainNetwork(network, TensorDict.from_module(network, as_module=False))


def gaussian(sac, names, **kwargs):
    torch.manual_seed(0)
    network = nn.Sequential(MLP(5, 6, num_cells=[8]), sac.actor().module[0].module[1])
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], names),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs=kwargs,
        return_log_prob=True,
    )
    torch.manual_seed(0)
    return sac.vmf_class(actor, sac.critic(), target_entropy=-3.0, fast=True)


def test_bounds_may_be_tensors(sac, make_batch):
    bounds = {"low": -torch.ones(3), "high": torch.ones(3)}
    loss = gaussian(sac, ["loc", "scale"], **bounds)
    loss.actor_loss(make_batch(16))
    assert loss._fast is not None


def test_mean_and_deviation_in_another_order_go_by_the_stock_path(sac, make_batch):
    loss = gaussian(sac, ["scale", "loc"])
    loss.qvalue_v2_loss(make_batch(16))
    assert loss._fast is None
    assert "loc" in loss._why_not_fast


def test_trajectory_numbers_of_collectors_do_not_keep_from_the_fast_path(algorithm, make_batch):
    _, fast = pair(algorithm)
    batch = make_batch(16).set(("collector", "traj_ids"), torch.zeros(16, dtype=torch.int64))
    fast.actor_loss(batch)
    assert fast._fast is not None


def test_a_value_estimator_without_fast_path_is_not_the_last_word(algorithm, make_batch):
    _, fast = pair(algorithm)
    fast.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.9)
    assert fast._fast_updates(make_batch(16)) is None
    fast.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
    assert fast._fast_updates(make_batch(16)) is not None


def test_soft_update_follows_parameters_that_moved_in_memory(algorithm):
    losses = pair(algorithm)
    for loss, updater in zip(losses, (SoftUpdate, FastSoftUpdate), strict=True):
        targets = updater(loss, tau=0.5)
        loss.double()
        for parameter in loss.parameters():
            parameter.data += 1
        targets.step()
    for name, value in losses[0].state_dict().items():
        torch.testing.assert_close(losses[1].state_dict()[name], value)


def test_parameters_that_moved_in_memory_are_followed(algorithm, make_batch):
    _, fast = pair(algorithm)
    batch = make_batch(16)
    algorithm.critic_loss(fast, batch)
    fast.actor_loss(batch)
    for parameter in fast.parameters():
        parameter.data = parameter.data + 0.1
    slow = algorithm.build()  # TorchRL's own loss remembers the old memory
    slow.load_state_dict(fast.state_dict())
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


def test_batches_without_terminated_end_with_done(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch(32)
    del batch["next", "terminated"]
    assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))


def test_biases_learn_where_weights_are_frozen(td3, make_batch):
    slow, fast = pair(td3)
    for loss in (slow, fast):
        for name, parameter in loss.named_parameters():
            if name.endswith("weight"):
                parameter.requires_grad_(False)
    assert_agree(slow, fast, lambda loss: loss.value_loss(make_batch(16)))


def test_autocast_goes_by_the_stock_path(algorithm, make_batch):
    _, fast = pair(algorithm)
    with torch.autocast("cpu", torch.bfloat16):
        algorithm.critic_loss(fast, make_batch(16))[0].backward()
    assert fast._fast is None


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_actor_loss_agrees_with_weights_in_the_batch(algorithm, make_batch, reduction):
    batch = make_batch(16).set("priority_weight", torch.rand(16))
    values = []
    for loss in pair(algorithm, reduction=reduction):
        torch.manual_seed(SEED)
        values.append(loss.actor_loss(batch.clone())[0])
    torch.testing.assert_close(values[1], values[0], **TOLERANCE)
