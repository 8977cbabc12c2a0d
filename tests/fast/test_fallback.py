"""What has no fast path goes by TorchRL's, and what has one is not kept from it."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import ValueEstimators

from helpers.fast_losses import SEED, TOLERANCE, pair


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


def test_autocast_goes_by_the_stock_path(algorithm, make_batch):
    _, fast = pair(algorithm)
    with torch.autocast("cpu", torch.bfloat16):
        algorithm.critic_loss(fast, make_batch(16))[0].backward()
    assert fast._fast is None


@pytest.mark.filterwarnings("ignore:SACLoss with reduction")
def test_losses_without_reduction_go_by_the_stock_path(algorithm, make_batch):
    slow, fast = pair(algorithm, reduction="none")
    batch = make_batch(16)
    values = []
    for loss in (slow, fast):
        torch.manual_seed(SEED)
        values.append(algorithm.critic_loss(loss, batch.clone())[0])
    assert values[0].shape == (16,)
    assert torch.equal(*values)


def test_gradients_reach_an_encoder(algorithm, make_batch):
    """Observations that ask for gradients get them, by TorchRL's path."""
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


def test_empty_batches_go_by_the_stock_path(td3, make_batch):
    slow, fast = pair(td3)
    assert slow.value_loss(make_batch(0))[0].isnan()
    assert fast.value_loss(make_batch(0))[0].isnan()
