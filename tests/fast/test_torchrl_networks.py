"""The networks of TorchRL's TD3, SAC and REDQ scripts use the fast path, with equal results."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import (
    MLP,
    ProbabilisticActor,
    SafeModule,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import SACLoss

from helpers.fast_losses import SEED, TOLERANCE, assert_agree
from torchrl_vmfer import VMFSACLoss, VMFTD3Loss, VMFUncertainty

UNIT = (-1.0, 1.0)
WIDE = ((-2.0, -0.5, 0.0), (2.0, 3.0, 0.4))


def spec_of(bounds):
    low, high = (torch.as_tensor(bound).expand(3).clone() for bound in bounds)
    return Bounded(low, high, (3,))


def lazy_mlp(outputs, activation):
    """As in the scripts, the first batch determines the number of inputs."""
    return MLP(out_features=outputs, num_cells=[32, 32], activation_class=activation)


def initialized(network, batch):
    with torch.no_grad():
        network(batch.clone())
    return network


def critic_of(batch, activation, keys=("action", "observation")):
    return initialized(ValueOperator(lazy_mlp(1, activation), in_keys=list(keys)), batch)


def td3_pair(batch, *, bounds=UNIT, activation=nn.ReLU, keys=("action", "observation"), **options):
    losses = []
    for fast in (False, True):
        torch.manual_seed(0)
        spec = spec_of(bounds)
        actor = TensorDictSequential(
            TensorDictModule(lazy_mlp(3, activation), ["observation"], ["param"]),
            TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
        )
        critic = critic_of(batch, activation, keys)
        actor = initialized(actor, batch)
        loss = VMFTD3Loss(actor, critic, action_spec=spec, fast=fast, **options)
        loss.make_value_estimator(gamma=0.9)
        losses.append(loss)
    return losses


def script_policy(spec, activation, extractor, distribution, log_prob):
    network = nn.Sequential(lazy_mlp(6, activation), NormalParamExtractor(**extractor))
    return ProbabilisticActor(
        SafeModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high} | distribution,
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=log_prob,
    )


def chain_policy(spec, activation, extractor, distribution, log_prob):
    return ProbabilisticTensorDictSequential(
        TensorDictModule(lazy_mlp(6, activation), ["observation"], ["param"]),
        TensorDictModule(NormalParamExtractor(**extractor), ["param"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": spec.space.low, "high": spec.space.high} | distribution,
            return_log_prob=log_prob,
        ),
    )


def sac_pair(
    batch,
    *,
    bounds=UNIT,
    activation=nn.ReLU,
    policy=script_policy,
    extractor=None,
    distribution=None,
    log_prob=False,
    **options,
):
    losses = []
    for fast in (False, True):
        torch.manual_seed(0)
        spec = spec_of(bounds)
        actor = policy(spec, activation, extractor or {}, distribution or {}, log_prob)
        critic = critic_of(batch, activation)
        actor = initialized(actor, batch)
        loss = VMFSACLoss(
            actor, critic, action_spec=spec, alpha_init=0.3, fast=fast, **options
        )  # fmt: skip
        loss.make_value_estimator(gamma=0.9)
        losses.append(loss)
    return losses


def assert_both_updates_agree(slow, fast, batch, critic_loss):
    assert_agree(slow, fast, lambda loss: getattr(loss, critic_loss)(batch.clone()))
    assert_agree(slow, fast, lambda loss: loss.actor_loss(batch.clone()))
    assert fast.fast_path == "fast"
    measured = []
    for loss in (slow, fast):
        torch.manual_seed(SEED)
        measured.append(VMFUncertainty(loss)(batch.clone())["vmf", "factor"])
    torch.testing.assert_close(measured[1], measured[0], **TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [
        {"loss_function": "l2"},
        {"bounds": WIDE},
        {"bounds": WIDE, "activation": nn.Tanh, "loss_function": "l2"},
        {"bounds": WIDE, "activation": nn.LeakyReLU, "measure": False},
        {"bounds": WIDE, "keys": ("observation", "action"), "actor_noise": 0.3},
        {"bounds": WIDE, "num_qvalue_nets": 10, "activation": nn.ELU},
        {"bounds": WIDE, "num_qvalue_nets": 4, "num_target_critics": None},
    ],
)
def test_td3(make_batch, options):
    batch = make_batch(64)
    slow, fast = td3_pair(batch, **options)
    assert_both_updates_agree(slow, fast, batch, "value_loss")


REDQ = {
    "activation": nn.ELU,
    "extractor": {"scale_mapping": "biased_softplus_1.0", "scale_lb": 0.05},
    "log_prob": True,
    "num_qvalue_nets": 10,
    "loss_function": "smooth_l1",
}
SCRIPT = {"extractor": {"scale_mapping": "biased_softplus_1.0", "scale_lb": 0.1}}


@pytest.mark.parametrize(
    "options",
    [
        {**SCRIPT, "distribution": {"tanh_loc": False}, "loss_function": "l2"},
        {**SCRIPT, "bounds": WIDE, "distribution": {"tanh_loc": False}},
        {**SCRIPT, "bounds": WIDE, "distribution": {"tanh_loc": True}},
        {**SCRIPT, "distribution": {"tanh_loc": True, "upscale": 2.0}},
        {**SCRIPT, "bounds": WIDE, "distribution": {"safe_tanh": False}, "log_prob": True},
        {**SCRIPT, "bounds": WIDE, "policy": chain_policy},
        {**SCRIPT, "bounds": WIDE, "measure": False},
        REDQ,
        REDQ | {"bounds": WIDE, "distribution": {"tanh_loc": True}, "num_target_critics": None},
    ],
)
def test_sac(make_batch, options):
    batch = make_batch(64)
    slow, fast = sac_pair(batch, **options)
    assert_both_updates_agree(slow, fast, batch, "qvalue_v2_loss")


@pytest.mark.parametrize(
    "mapping",
    ["softplus", "exp", "relu", "expln", "none", "biased_softplus", "biased_softplus_0.5_0.1"],
)
def test_sac_with_every_mapping_of_the_scale(make_batch, mapping):
    batch = make_batch(64)
    extractor = {"scale_mapping": mapping, "scale_lb": 0.1}
    slow, fast = sac_pair(batch, bounds=WIDE, extractor=extractor)
    assert_both_updates_agree(slow, fast, batch, "qvalue_v2_loss")


def test_forward_of_sac_equals_torchrls(make_batch):
    batch = make_batch(64)
    _, fast = sac_pair(batch, **SCRIPT, bounds=WIDE)
    torch.manual_seed(0)
    spec = spec_of(WIDE)
    actor = script_policy(spec, nn.ReLU, SCRIPT["extractor"], {}, False)
    critic = critic_of(batch, nn.ReLU)
    stock = SACLoss(initialized(actor, batch), critic, action_spec=spec, alpha_init=0.3)
    stock.make_value_estimator(gamma=0.9)
    results = []
    for loss in (stock, fast):
        torch.manual_seed(SEED)
        results.append(loss(batch.clone()))
    for name in stock.out_keys:
        torch.testing.assert_close(results[1][name], results[0][name], **TOLERANCE, msg=name)
    assert fast.fast_path == "fast"
    assert results[1]["vmf_factor"].shape == (64,)


def test_bounds_are_found_after_parameters_move_in_memory(make_batch):
    batch = make_batch(64)
    slow, fast = td3_pair(batch, bounds=WIDE)
    fast.actor_loss(batch.clone())
    slow, fast = slow.double(), fast.double()
    batch = batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)
    assert_both_updates_agree(slow, fast, batch, "value_loss")
