"""The standalone module against brute force and the losses, and within TensorDict programs."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import (
    MLP,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import (
    CrossQLoss,
    DDPGLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    TD3Loss,
)

from helpers import brute_force
from helpers.losses import SAC, SEED, TD3, NormalizedNetwork, make_batch, perturb, seeded
from torchrl_vmfer import VMFTD3Loss, VMFUncertainty

STATISTICS = ["factor", "resultant_length", "mean_direction", "concentration"]


@pytest.fixture(params=["torchrl", "vmf"])
def loss(request, any_algorithm):
    """A loss whose factors differ between the critics e; CQL always has two critics."""
    is_ours = request.param == "vmf"
    options = {} if any_algorithm.name == "cql" else {"num_qvalue_nets": 5}
    if is_ours and any_algorithm.name in ("td3", "sac"):
        options["num_target_critics"] = None
    return any_algorithm.build(None if is_ours else any_algorithm.stock_class, **options)


@pytest.mark.parametrize("size", [12, (3, 4)])
def test_the_statistics_equal_their_definitions(loss, any_algorithm, size):
    batch = make_batch(size)
    batch["observation"].requires_grad_()
    result = seeded(VMFUncertainty(loss), batch.clone())["vmf"]
    batch = batch.detach()
    action = brute_force.policy_action(loss, batch, seed=SEED)
    gradients = brute_force.action_gradients(loss, batch, action)
    values = brute_force.critic_values(loss, batch, action)
    expected = brute_force.sampling_factor(
        gradients, brute_force.critic_named(any_algorithm.used, values)
    )
    assert expected.std() > 1e-3
    torch.testing.assert_close(result["factor"].double(), expected, rtol=0, atol=1e-5)
    mean = nn.functional.normalize(gradients, dim=-1).mean(0)
    length = mean.norm(dim=-1)
    torch.testing.assert_close(result["resultant_length"], length, rtol=0, atol=1e-5)
    direction = mean / length[..., None]
    torch.testing.assert_close(result["mean_direction"], direction, rtol=0, atol=1e-4)
    # From the returned R: near R = 1, the pole amplifies rounding differences.
    length = result["resultant_length"]
    concentration = length * (3 - length**2) / (1 - length**2)
    torch.testing.assert_close(result["concentration"], concentration, rtol=1e-3, atol=1e-4)
    assert not any(result[name].requires_grad for name in STATISTICS)
    assert all(param.grad is None for param in loss.parameters())


def test_uses_the_same_action_as_td3_with_a_stochastic_policy(td3, sac):
    torch.manual_seed(0)
    loss = VMFTD3Loss(sac.actor(), td3.critic(), bounds=(-1.0, 1.0))
    batch = make_batch(9)
    _, metadata = loss.actor_loss(batch.clone())
    result = VMFUncertainty(loss)(batch.clone())["vmf", "factor"]
    torch.testing.assert_close(result, metadata["vmf_factor"], rtol=0, atol=1e-5)


def test_critics_with_batch_normalization_are_in_evaluation_mode(sac):
    torch.manual_seed(0)
    loss = sac.build(CrossQLoss, critic=sac.critic(network=NormalizedNetwork()))
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    result = seeded(VMFUncertainty(loss), make_batch(12))["vmf", "factor"]
    assert loss.qvalue_network.training
    for key, value in loss.state_dict().items():
        assert torch.equal(value, before[key]), key
    loss.qvalue_network.eval()
    expected, _ = brute_force.factors_and_lengths(loss, make_batch(12), "min")
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keep", [("observation",), ("observation", "action")])
def test_reads_the_observation_and_writes_under_vmf(algorithm, keep):
    uncertainty = VMFUncertainty(algorithm.build())
    assert uncertainty.state_dict() == {}
    assert uncertainty.in_keys == ["observation"]
    assert uncertainty.out_keys == [("vmf", name) for name in STATISTICS]
    batch = make_batch(6).select(*keep)
    before = batch.clone()
    result = uncertainty(batch)
    assert result is batch
    assert set(result.keys(True, True)) == {*keep, *uncertainty.out_keys}
    assert (result.select(*keep) == before).all()


def test_custom_keys_are_used(algorithm):
    keys = {"action": ("agent", "action"), "observation": ("agent", "state")}
    loss = algorithm.build(value=("agent", "quality"), **keys)
    uncertainty = VMFUncertainty(loss)
    assert uncertainty.in_keys == [("agent", "state")]
    result = seeded(uncertainty, make_batch(6, **keys))
    expected = seeded(VMFUncertainty(algorithm.build()), make_batch(6))
    assert torch.equal(result["vmf", "factor"], expected["vmf", "factor"])


def test_a_critic_may_read_more_than_the_actor(td3):
    torch.manual_seed(0)
    network = MLP(in_features=10, out_features=1, num_cells=[16])
    critic = ValueOperator(network, in_keys=["observation", "privileged", "action"])
    uncertainty = VMFUncertainty(td3.build(TD3Loss, critic=critic))
    assert uncertainty.in_keys == ["observation", "privileged"]
    batch = make_batch(6).set("privileged", torch.randn(6, 2))
    assert uncertainty(batch)["vmf", "factor"].shape == (6,)


def test_can_be_called_with_keyword_arguments(algorithm):
    uncertainty = VMFUncertainty(algorithm.build())
    batch = make_batch(6)
    outputs = seeded(lambda: uncertainty(observation=batch["observation"]))
    expected = seeded(uncertainty, batch)["vmf"]
    assert len(outputs) == len(STATISTICS)
    for output, name in zip(outputs, STATISTICS, strict=True):
        assert torch.equal(output, expected[name])


@pytest.mark.parametrize("part", ["actor_network_params", "qvalue_network_params"])
def test_uses_the_current_parameters_of_the_loss(algorithm, part):
    loss = algorithm.build()
    uncertainty = VMFUncertainty(loss)
    before = seeded(uncertainty, make_batch(6))["vmf", "factor"]
    perturb(getattr(loss, part), slice(None), amount=0.5)
    after = seeded(uncertainty, make_batch(6))["vmf", "factor"]
    assert not torch.isclose(before, after).all()
    assert torch.equal(after, seeded(VMFUncertainty(loss), make_batch(6))["vmf", "factor"])


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_statistics_of_given_gradients_are_those_of_the_first_critic_by_default(batch, dtype):
    gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=dtype)
    gradients = gradients.reshape(3, *(1 for _ in batch), 2).expand(3, *batch, 2)
    result = VMFUncertainty.from_gradients(gradients)
    assert result.batch_size == batch
    assert set(result["vmf"].keys()) == set(STATISTICS)
    expected = torch.tensor(1 / 3, dtype=dtype).exp().expand(batch)
    torch.testing.assert_close(result["vmf", "factor"], expected)
    torch.testing.assert_close(
        result["vmf", "resultant_length"], torch.tensor(5 / 9, dtype=dtype).sqrt().expand(batch)
    )


def value_network(outputs):
    return MLP(in_features=5, out_features=outputs, num_cells=[8])


def dqn():
    actor = QValueActor(value_network(4), in_keys=["observation"], action_space="one_hot")
    return DQNLoss(actor, action_space="one_hot")


def discrete_sac():
    logits = TensorDictModule(value_network(4), ["observation"], ["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical)
    critic = TensorDictModule(value_network(4), ["observation"], ["action_value"])
    options = {"action_space": "one-hot", "num_actions": 4, "target_entropy": 0.1}
    return DiscreteSACLoss(actor, critic, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DDPGLoss(TD3.actor(), TD3.critic()), "`qvalue_network`, but DDPGLoss has none"),
        (dqn, "`actor_network`, but DQNLoss has none"),
        (discrete_sac, "critics of DiscreteSACLoss do not read the action"),
        (
            lambda: IQLLoss(
                SAC.actor(), SAC.critic(), ValueOperator(value_network(1), ["observation"])
            ),
            "IQLLoss imitates .* follows no gradient",
        ),
        (lambda: nn.Linear(2, 2), "Linear has none"),
    ],
    ids=["ddpg", "dqn", "discrete_sac", "iql", "no_loss"],
)
def test_a_loss_without_an_ensemble_of_critics_of_actions_is_rejected(make, message):
    with pytest.raises(TypeError, match=message):
        VMFUncertainty(make())
