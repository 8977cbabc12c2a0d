"""Losses without a fast path use TorchRL's, warn once, and return when the reason is gone."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import (
    MLP,
    IndependentNormal,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ValueEstimators

from helpers.fast_losses import SEED, TOLERANCE, assert_agree, pair
from torchrl_vmfer import VMFUncertainty

FALLS_BACK = "uses TorchRL's general path"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shifted_valid", torch.arange(64) % 3 > 0),
        (("collector", "mask"), torch.arange(64).unsqueeze(-1) % 3 > 0),
        ("steps_to_next_obs", torch.arange(64).unsqueeze(-1) % 3 + 1),
    ],
    ids=str,
)
def test_masks_and_several_steps_use_the_general_path(algorithm, make_batch, key, value):
    slow, fast = pair(algorithm)
    batch = make_batch(64).set(key, value)
    torch.manual_seed(SEED)
    expected = algorithm.critic_loss(slow, batch.clone())[0]
    torch.manual_seed(SEED)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        found = algorithm.critic_loss(fast, batch.clone())[0]
    assert torch.equal(found, expected)
    assert repr(key) in fast.fast_path
    torch.manual_seed(SEED)
    plain = algorithm.critic_loss(slow, make_batch(64))[0]
    assert not torch.equal(plain, expected)  # otherwise nothing would be tested


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
def test_other_critics_use_the_general_path(algorithm, make_batch, network):
    torch.manual_seed(0)
    critic = algorithm.critic(network=network())
    slow, fast = pair(algorithm, critic=critic)
    batch = make_batch(16)
    torch.manual_seed(SEED)
    expected = slow.actor_loss(batch.clone())[0]
    torch.manual_seed(SEED)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        found = fast.actor_loss(batch.clone())[0]
    assert torch.equal(found, expected)
    assert "is not a plain layer" in fast.fast_path


@pytest.mark.parametrize(
    "options", [{"entropy_gradient": True}, {"skip_done_states": True}], ids=str
)
def test_other_options_use_the_general_path(sac, make_batch, options):
    _, fast = pair(sac, **options)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        fast.actor_loss(make_batch(16))
    assert fast.fast_path == f"{next(iter(options))}=True"


def test_batches_of_several_dimensions_use_the_general_path(algorithm, make_batch):
    slow, fast = pair(algorithm)
    batch = make_batch((4, 3))
    torch.manual_seed(SEED)
    expected = slow.actor_loss(batch.clone())[0]
    torch.manual_seed(SEED)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        found = fast.actor_loss(batch.clone())[0]
    assert torch.equal(found, expected)
    assert fast.fast_path == "the batch has the shape [4, 3]"
    fast.actor_loss(make_batch(5))
    assert fast.fast_path == "fast"


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
    assert loss.fast_path == "fast"


def test_other_distributions_use_the_general_path(sac, make_batch):
    network = nn.Sequential(MLP(5, 6, num_cells=[8]), sac.actor().module[0].module[1])
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
    )
    loss = sac.vmf_class(actor, sac.critic(), target_entropy=-3.0, fast=True)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        loss.actor_loss(make_batch(16))
    assert loss.fast_path == "the policy is not a TanhNormal"


def test_modules_that_are_not_a_chain_use_the_general_path(td3, make_batch):
    actor = TensorDictSequential(
        TensorDictModule(nn.Linear(5, 3), ["observation"], ["param"]),
        TensorDictModule(lambda param, observation: param * observation[..., :3],
                         ["param", "observation"], ["action"]),
    )  # fmt: skip
    loss = td3.vmf_class(actor, td3.critic(activation=nn.ReLU), **td3.defaults, fast=True)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        loss.actor_loss(make_batch(16))
    assert loss.fast_path == "the modules of the policy are not a chain"


def test_critics_that_read_the_action_neither_first_nor_last_use_the_general_path(td3, make_batch):
    keys = ["observation", "action", "goal"]
    critic = ValueOperator(MLP(9, 1, num_cells=[8]), in_keys=keys)
    actor = TensorDictModule(MLP(6, 3, num_cells=[8]), ["observation", "goal"], ["action"])
    loss = td3.vmf_class(actor, critic, **td3.defaults, fast=True)
    with pytest.warns(UserWarning, match=FALLS_BACK):
        loss.actor_loss(make_batch(16).set("goal", torch.zeros(16, 1)))
    assert loss.fast_path == "the critics do not read the action first or last"


def test_mean_and_deviation_in_another_order_use_the_general_path(sac, make_batch):
    loss = gaussian(sac, ["scale", "loc"])
    with pytest.warns(UserWarning, match=FALLS_BACK):
        loss.qvalue_v2_loss(make_batch(16))
    assert "loc" in loss.fast_path


def test_trajectory_numbers_of_collectors_do_not_prevent_the_fast_path(algorithm, make_batch):
    _, fast = pair(algorithm)
    batch = make_batch(16).set(("collector", "traj_ids"), torch.zeros(16, dtype=torch.int64))
    fast.actor_loss(batch)
    assert fast.fast_path == "fast"


def test_the_fast_path_returns_when_the_value_estimator_is_replaced(algorithm, make_batch):
    _, fast = pair(algorithm)
    fast.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.9)
    assert "TDLambdaEstimator" in fast.fast_path
    fast.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
    assert fast.fast_path == "fast"


def test_autocast_uses_the_general_path(algorithm, make_batch):
    _, fast = pair(algorithm)
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match=FALLS_BACK):
        algorithm.critic_loss(fast, make_batch(16))[0].backward()
    assert fast.fast_path == "autocast is enabled"


@pytest.mark.filterwarnings("ignore:SACLoss with reduction", f"ignore:.*{FALLS_BACK}")
def test_losses_without_reduction_use_the_general_path(algorithm, make_batch):
    slow, fast = pair(algorithm, reduction="none")
    batch = make_batch(16)
    values = []
    for loss in (slow, fast):
        torch.manual_seed(SEED)
        values.append(algorithm.critic_loss(loss, batch.clone())[0])
    assert values[0].shape == (16,)
    assert torch.equal(*values)


@pytest.mark.filterwarnings(f"ignore:.*{FALLS_BACK}")
def test_gradients_reach_an_encoder(algorithm, make_batch):
    """Observations that require gradients receive them through TorchRL's path."""
    batch = make_batch(16)
    found = []
    for loss in pair(algorithm):
        observation = batch["observation"].clone().requires_grad_()
        torch.manual_seed(SEED)
        seen = batch.clone().set("observation", observation)
        (algorithm.critic_loss(loss, seen)[0] + loss.actor_loss(seen)[0]).backward()
        found.append(observation.grad)
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(found[1], found[0], **TOLERANCE)


@pytest.mark.filterwarnings(f"ignore:.*{FALLS_BACK}")
def test_empty_batches_use_the_general_path(td3, make_batch):
    slow, fast = pair(td3)
    assert slow.value_loss(make_batch(0))[0].isnan()
    assert fast.value_loss(make_batch(0))[0].isnan()


def test_the_warning_appears_once_with_the_reason(algorithm, make_batch):
    _, fast = pair(algorithm)
    with pytest.warns(UserWarning, match=rf"{FALLS_BACK}: the batch has the shape \[2, 3\]"):
        fast.actor_loss(make_batch((2, 3)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{FALLS_BACK}")
        fast.actor_loss(make_batch((3, 2)))
        algorithm.critic_loss(fast, make_batch((3, 2)))
        copy.deepcopy(fast).actor_loss(make_batch((3, 2)))
    assert fast.fast_path == "the batch has the shape [3, 2]"


def test_there_is_no_warning_without_fast_or_with_a_fast_path(algorithm, make_batch):
    slow, fast = pair(algorithm)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{FALLS_BACK}")
        slow.actor_loss(make_batch((2, 3)))
        assert slow.fast_path == "fast=False"
        assert fast.fast_path == "fast"
        fast.actor_loss(make_batch(6))
        algorithm.critic_loss(fast, make_batch(6))
        VMFUncertainty(fast)(make_batch(6))
    with pytest.raises(AttributeError):
        fast.fast_path = "slow"


def test_an_option_that_is_set_later_is_detected(sac, make_batch):
    slow, fast = pair(sac)
    fast.actor_loss(make_batch(16))
    slow.entropy_gradient = fast.entropy_gradient = True
    with pytest.warns(UserWarning, match="entropy_gradient=True"):
        assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(16)))
    fast.entropy_gradient = False
    assert fast.fast_path == "fast"


def doubled(module, inputs, output):
    return 2 * output


@pytest.mark.parametrize("part", ["actor_network", "qvalue_network"])
def test_hooks_that_are_registered_later_are_called(algorithm, make_batch, part):
    slow, fast = pair(algorithm)
    batch = make_batch(16)
    for update in (lambda loss: algorithm.critic_loss(loss, batch.clone()),
                   lambda loss: loss.actor_loss(batch.clone())):  # fmt: skip
        update(fast)
    handles = [
        next(m for m in getattr(loss, part).modules() if isinstance(m, nn.Linear))
        .register_forward_hook(doubled)
        for loss in (slow, fast)
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="a network has hooks"):
        assert_agree(slow, fast, lambda loss: algorithm.critic_loss(loss, batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    for handle in handles:
        handle.remove()
    assert fast.fast_path == "fast"
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))


def test_hooks_of_all_modules_are_called(td3, make_batch):
    _, fast = pair(td3)
    fast.actor_loss(make_batch(16))
    called = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    try:
        with pytest.warns(UserWarning, match="hooks"):
            fast.actor_loss(make_batch(16))
    finally:
        handle.remove()
    assert called


@pytest.mark.parametrize("kind", [nn.Linear, nn.ReLU])
def test_a_forward_that_is_assigned_to_a_layer_is_called(td3, make_batch, kind):
    slow, fast = pair(td3)
    batch = make_batch(16)
    td3.critic_loss(fast, batch.clone())
    for loss in (slow, fast):
        layer = next(m for m in loss.qvalue_network.modules() if isinstance(m, kind))
        layer.forward = lambda inputs, forward=layer.forward: 2 * forward(inputs)
    with pytest.warns(UserWarning, match="hooks"):
        assert_agree(slow, fast, lambda loss: td3.critic_loss(loss, batch.clone()))


def test_a_layer_that_is_replaced_later_is_detected(td3, make_batch):
    slow, fast = pair(td3)
    for loss in (slow, fast):
        loss.actor_loss(make_batch(16))
        network = loss.qvalue_network.module
        network[1] = nn.ELU()
    assert_agree(slow, fast, lambda loss: loss.actor_loss(make_batch(16)))
    assert fast.fast_path == "fast"


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.SiLU])
def test_inference_mode(algorithm, make_batch, activation):
    slow, fast = pair(algorithm, activation=activation)
    results = []
    for loss in (slow, fast):
        torch.manual_seed(SEED)
        with torch.inference_mode():
            batch = make_batch(16)
            value, metadata = loss.actor_loss(batch)
            critic_value = algorithm.critic_loss(loss, batch)[0]
            factor = VMFUncertainty(loss)(batch)["vmf", "factor"]
        results.append([value, critic_value, metadata["vmf_factor"], factor])
    assert fast.fast_path == "fast"
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, **TOLERANCE)
