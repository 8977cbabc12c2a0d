"""The standalone module against brute force and the losses, and within TensorDict programs."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import (
    MLP,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import (
    CQLLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    REDQLoss,
    SACLoss,
    TD3BCLoss,
    TD3Loss,
    TQCLoss,
)

from helpers.losses import critic_named
from torchrl_vmfer import (
    VMFCQLLoss,
    VMFCrossQLoss,
    VMFREDQLoss,
    VMFSACLoss,
    VMFTD3BCLoss,
    VMFTD3Loss,
    VMFTQCLoss,
    VMFUncertainty,
    directional,
)

SEED = 5
STATISTICS = ["factor", "resultant_length", "mean_direction", "concentration"]
# By loss: the algorithm, and arguments with which the wrong critic e would be noticed.
LOSSES = {
    TD3Loss: ("td3", {"num_qvalue_nets": 5}),
    VMFTD3Loss: ("td3", {"num_qvalue_nets": 5}),
    SACLoss: ("sac", {"num_qvalue_nets": 4}),
    VMFSACLoss: ("sac", {"num_qvalue_nets": 4, "num_target_critics": 4}),
    **{loss_class: ("td3_bc", {}) for loss_class in (TD3BCLoss, VMFTD3BCLoss)},
    **{loss_class: ("crossq", {}) for loss_class in (CrossQLoss, VMFCrossQLoss)},
    **{loss_class: ("redq", {}) for loss_class in (REDQLoss, VMFREDQLoss)},
    **{loss_class: ("tqc", {}) for loss_class in (TQCLoss, VMFTQCLoss)},
    **{loss_class: ("cql", {}) for loss_class in (CQLLoss, VMFCQLLoss)},  # always two critics
}


@pytest.fixture(params=LOSSES, ids=lambda loss_class: loss_class.__name__)
def loss_and_used(request):
    name, options = LOSSES[request.param]
    algorithm = request.getfixturevalue(name)
    return algorithm.build(request.param, **options), algorithm.used


@pytest.fixture
def loss(loss_and_used):
    return loss_and_used[0]


def evaluate(uncertainty, batch):
    torch.manual_seed(SEED)
    return uncertainty(batch)


def test_the_factor_equals_brute_force(loss_and_used, brute_force, make_batch):
    loss, used = loss_and_used
    batch = make_batch(12)
    result = evaluate(VMFUncertainty(loss), batch.clone())["vmf", "factor"]
    action = brute_force.policy_action(loss, batch, seed=SEED)
    gradients = brute_force.action_gradients(loss, batch, action)
    values = brute_force.critic_values(loss, batch, action)
    expected = brute_force.sampling_factor(gradients, critic_named(used, values))
    assert expected.std() > 1e-3
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)


def test_the_other_statistics_equal_the_definitions(loss, brute_force, make_batch):
    batch = make_batch(12)
    result = evaluate(VMFUncertainty(loss), batch.clone())["vmf"]
    action = brute_force.policy_action(loss, batch, seed=SEED)
    x = nn.functional.normalize(brute_force.action_gradients(loss, batch, action), dim=-1)
    mean = x.mean(0)
    length = mean.norm(dim=-1)
    torch.testing.assert_close(result["resultant_length"], length, rtol=0, atol=1e-5)
    direction = mean / length[:, None]
    torch.testing.assert_close(result["mean_direction"], direction, rtol=0, atol=1e-4)
    # From the returned R: near R = 1, the pole amplifies rounding differences.
    length = result["resultant_length"]
    concentration = length * (3 - length**2) / (1 - length**2)
    torch.testing.assert_close(result["concentration"], concentration, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("critics", [1, 2, 5])
@pytest.mark.parametrize("size", [7, (3, 4)])
def test_agrees_with_the_factor_of_the_loss(algorithm, make_batch, critics, size):
    loss = algorithm.build(num_qvalue_nets=critics)
    batch = make_batch(size)
    result = evaluate(VMFUncertainty(loss), batch.clone())
    torch.manual_seed(SEED)
    _, metadata = loss.actor_loss(batch.clone())
    for name in ("factor", "resultant_length"):
        expected = metadata[f"vmf_{name}"]
        assert result["vmf", name].shape == batch.batch_size
        torch.testing.assert_close(result["vmf", name], expected, rtol=0, atol=1e-5)


def test_uses_the_same_action_as_td3_with_a_stochastic_policy(td3, sac, make_batch):
    torch.manual_seed(0)
    loss = VMFTD3Loss(sac.actor(), td3.critic(), bounds=(-1.0, 1.0))
    batch = make_batch(9)
    _, metadata = loss.actor_loss(batch.clone())
    result = VMFUncertainty(loss)(batch.clone())["vmf", "factor"]
    torch.testing.assert_close(result, metadata["vmf_factor"], rtol=0, atol=1e-5)


class TestCrossQWithBatchNormalization:
    """CrossQ evaluates its critics in eval mode for the actor, in training mode for the target."""

    @pytest.fixture
    def loss(self, sac):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))

        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network

            def forward(self, *inputs):
                return self.network(torch.cat(inputs, -1))

        return sac.build(CrossQLoss, critic=sac.critic(network=Network()))

    def test_the_factor_equals_brute_force_in_evaluation_mode(self, loss, brute_force, make_batch):
        batch = make_batch(12)
        result = evaluate(VMFUncertainty(loss), batch.clone())["vmf", "factor"]
        loss.qvalue_network.eval()
        action = brute_force.policy_action(loss, batch, seed=SEED)
        gradients = brute_force.action_gradients(loss, batch, action)
        used = brute_force.critic_values(loss, batch, action).argmin(0)
        expected = brute_force.sampling_factor(gradients, used)
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)

    def test_the_statistics_and_the_mode_are_not_changed(self, loss, make_batch):
        before = {key: value.clone() for key, value in loss.state_dict().items()}
        VMFUncertainty(loss)(make_batch(12))
        assert loss.qvalue_network.training
        for key, value in loss.state_dict().items():
            assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("keep", [("observation",), ("observation", "action")])
def test_reads_the_observation_and_writes_under_vmf(algorithm, make_batch, keep):
    uncertainty = VMFUncertainty(algorithm.build())
    assert uncertainty.in_keys == ["observation"]
    assert uncertainty.out_keys == [("vmf", name) for name in STATISTICS]
    batch = make_batch(6).select(*keep)
    before = batch.clone()
    result = uncertainty(batch)
    assert result is batch
    assert set(result.keys(True, True)) == {*keep, *uncertainty.out_keys}
    assert (result.select(*keep) == before).all()


def test_the_action_in_the_batch_does_not_matter(td3, make_batch):
    uncertainty = VMFUncertainty(td3.build())
    batch = make_batch(6)
    expected = uncertainty(batch.clone())["vmf", "factor"]
    result = uncertainty(batch.clone().set("action", torch.zeros(6, 3)))["vmf", "factor"]
    assert torch.equal(result, expected)


def test_custom_keys_are_used(algorithm, make_batch):
    keys = {"action": ("agent", "action"), "observation": ("agent", "state")}
    loss = algorithm.build(value=("agent", "quality"), **keys)
    uncertainty = VMFUncertainty(loss)
    assert uncertainty.in_keys == [("agent", "state")]
    result = evaluate(uncertainty, make_batch(6, **keys))
    expected = evaluate(VMFUncertainty(algorithm.build()), make_batch(6))
    assert torch.equal(result["vmf", "factor"], expected["vmf", "factor"])


def test_a_critic_may_read_more_than_the_actor(td3, make_batch):
    torch.manual_seed(0)
    network = MLP(in_features=10, out_features=1, num_cells=[16])
    critic = ValueOperator(network, in_keys=["observation", "privileged", "action"])
    uncertainty = VMFUncertainty(td3.build(TD3Loss, critic=critic))
    assert uncertainty.in_keys == ["observation", "privileged"]
    batch = make_batch(6).set("privileged", torch.randn(6, 2))
    assert uncertainty(batch)["vmf", "factor"].shape == (6,)


def test_can_be_called_with_keyword_arguments(algorithm, make_batch):
    uncertainty = VMFUncertainty(algorithm.build())
    batch = make_batch(6)
    torch.manual_seed(SEED)
    outputs = uncertainty(observation=batch["observation"])
    expected = evaluate(uncertainty, batch)["vmf"]
    assert len(outputs) == len(STATISTICS)
    for output, name in zip(outputs, STATISTICS, strict=True):
        assert torch.equal(output, expected[name])


def test_can_be_part_of_a_sequence(algorithm, make_batch):
    uncertainty = VMFUncertainty(algorithm.build())
    scaled = TensorDictModule(lambda raw: raw / 10, ["raw"], ["observation"])
    logarithm = TensorDictModule(torch.log, [("vmf", "factor")], ["log_factor"])
    sequence = TensorDictSequential(scaled, uncertainty, logarithm)
    assert sequence.in_keys == ["raw"]
    raw = 10 * make_batch(6)["observation"]
    result = evaluate(sequence, TensorDict({"raw": raw}, [6]))
    alone = evaluate(uncertainty, TensorDict({"observation": raw / 10}, [6]))
    torch.testing.assert_close(result["log_factor"], alone["vmf", "factor"].log())


def test_has_no_parameters_and_no_state(algorithm):
    uncertainty = VMFUncertainty(algorithm.build())
    assert list(uncertainty.parameters()) == []
    assert list(uncertainty.buffers()) == []
    assert uncertainty.state_dict() == {}


def test_writes_no_gradient_and_returns_none(loss, make_batch):
    batch = make_batch(6)
    batch["observation"].requires_grad_()
    result = VMFUncertainty(loss)(batch)
    assert all(param.grad is None for param in loss.parameters())
    assert batch["observation"].grad is None
    assert not any(result["vmf", name].requires_grad for name in STATISTICS)


@pytest.mark.parametrize("part", ["actor_network_params", "qvalue_network_params"])
def test_uses_the_current_parameters_of_the_loss(algorithm, make_batch, part):
    loss = algorithm.build()
    uncertainty = VMFUncertainty(loss)
    batch = make_batch(6)
    before = evaluate(uncertainty, batch.clone())["vmf", "factor"]
    with torch.no_grad():
        for param in getattr(loss, part).values(True, True):
            param += 0.5 * torch.randn(param.shape)
    after = evaluate(uncertainty, batch.clone())["vmf", "factor"]
    assert not torch.isclose(before, after).all()
    rebuilt = evaluate(VMFUncertainty(loss), batch.clone())["vmf", "factor"]
    assert torch.equal(after, rebuilt)


@pytest.mark.parametrize("used", ["first", "min", "mean"])
def test_the_used_critic_can_be_chosen(algorithm, brute_force, make_batch, used):
    loss = algorithm.build(num_qvalue_nets=4, num_target_critics=4)
    batch = make_batch(20)
    result = evaluate(VMFUncertainty(loss, used=used), batch.clone())["vmf", "factor"]
    action = brute_force.policy_action(loss, batch, seed=SEED)
    index = critic_named(used, brute_force.critic_values(loss, batch, action))
    gradients = brute_force.action_gradients(loss, batch, action)
    expected = brute_force.sampling_factor(gradients, index)
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("deactivate_vmap", [False, True])
def test_works_without_vmap(algorithm, make_batch, deactivate_vmap):
    expected = evaluate(VMFUncertainty(algorithm.build()), make_batch(6))["vmf"]
    loss = algorithm.build(deactivate_vmap=deactivate_vmap)
    result = evaluate(VMFUncertainty(loss), make_batch(6))["vmf"]
    torch.testing.assert_close(result["factor"], expected["factor"])


class TestFromGradients:
    @pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_returns_the_statistics_of_the_gradients(self, batch, dtype):
        generator = torch.Generator().manual_seed(0)
        gradients = torch.randn(3, *batch, 5, generator=generator, dtype=dtype)
        used = torch.randint(3, batch, generator=generator)
        result = VMFUncertainty.from_gradients(gradients, used)
        assert result.batch_size == batch
        assert set(result["vmf"].keys()) == set(STATISTICS)
        length = directional.resultant_length(gradients)
        expected = {
            "factor": directional.sampling_factor(gradients, used),
            "resultant_length": length,
            "mean_direction": directional.mean_direction(gradients),
            "concentration": directional.concentration(length, 5),
        }
        for name, value in expected.items():
            assert result["vmf", name].dtype == dtype
            assert torch.equal(result["vmf", name], value)

    def test_uses_the_first_critic_by_default(self):
        gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        result = VMFUncertainty.from_gradients(gradients)["vmf", "factor"]
        torch.testing.assert_close(result, torch.tensor(1 / 3).exp())

    def test_uses_the_direction_of_the_mean_gradient_on_request(self):
        gradients = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        result = VMFUncertainty.from_gradients(gradients, "mean")["vmf", "factor"]
        # (½, ½) times the direction of (1, 3)
        torch.testing.assert_close(result, torch.tensor(2 / 10**0.5).exp())

    def test_excludes_a_nonfinite_gradient_from_the_mean(self):
        gradients = torch.tensor([[3.0, 4.0], [torch.inf, 1.0]])
        result = VMFUncertainty.from_gradients(gradients, "mean")["vmf", "factor"]
        torch.testing.assert_close(result, torch.tensor(0.5).exp())

    def test_stays_finite_without_any_direction(self):
        gradients = torch.tensor([[[0.0, 0.0], [torch.nan, 1.0]]]).expand(2, 2, 2)
        result = VMFUncertainty.from_gradients(gradients)["vmf"]
        assert (result["factor"] == 1).all()
        assert all(result[name].isfinite().all() for name in STATISTICS)


class TestRejects:
    def test_a_loss_without_an_ensemble_of_critics(self, td3):
        loss = DDPGLoss(td3.actor(), td3.critic())
        with pytest.raises(TypeError, match="`qvalue_network`, but DDPGLoss has none"):
            VMFUncertainty(loss)

    def test_a_loss_without_an_actor(self):
        network = MLP(in_features=5, out_features=4, num_cells=[8])
        actor = QValueActor(network, in_keys=["observation"], action_space="one_hot")
        with pytest.raises(TypeError, match="`actor_network`, but DQNLoss has none"):
            VMFUncertainty(DQNLoss(actor, action_space="one_hot"))

    def test_critics_of_discrete_actions(self):
        logits = TensorDictModule(nn.Linear(5, 4), ["observation"], ["logits"])
        actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical)
        critic = TensorDictModule(nn.Linear(5, 4), ["observation"], ["action_value"])
        loss = DiscreteSACLoss(
            actor, critic, action_space="one-hot", num_actions=4, target_entropy=0.1
        )
        with pytest.raises(TypeError, match="DiscreteSACLoss"):
            VMFUncertainty(loss)

    def test_a_loss_whose_actor_follows_no_gradient_of_the_critics(self, sac):
        value = ValueOperator(MLP(in_features=5, out_features=1, num_cells=[8]), ["observation"])
        loss = IQLLoss(sac.actor(), sac.critic(), value)
        with pytest.raises(TypeError, match=r"IQLLoss imitates .* follows no gradient"):
            VMFUncertainty(loss)

    def test_an_object_that_is_not_a_loss(self):
        with pytest.raises(TypeError, match="Linear has none"):
            VMFUncertainty(nn.Linear(2, 2))

    def test_an_unknown_value_of_used(self, td3):
        with pytest.raises(ValueError, match="used must be 'first', 'min' or 'mean', got 'max'"):
            VMFUncertainty(td3.build(), used="max")
