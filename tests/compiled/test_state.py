"""Compiled updates work in place, notice what was replaced, and repeat to the bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.optim import SGD, Adam
from torchrl.data import LazyTensorStorage

from helpers.compiled_agents import (
    LOSSES,
    Agent,
    Shape,
    assert_same,
    make_batch,
    make_loss,
    pair,
    update,
)
from torchrl_vmfer import VMFTD3Loss
from torchrl_vmfer.compiled import NotServedError


def run(compiled, count, seed=0):
    for number in range(seed, seed + count):
        torch.manual_seed(number)
        update(compiled, make_batch(31), number)


@pytest.mark.parametrize("algorithm", LOSSES)
def test_repeats_and_resumes_to_the_bit(algorithm, module):
    agent, other = pair(algorithm)
    run(agent.compiled(module), 6)
    first = other.compiled(module)
    run(first, 3)
    resumed = Agent(make_loss(algorithm))
    compiled = resumed.compiled(module)
    run(compiled, 2)  # makes states that are then replaced
    resumed.loss.load_state_dict(copy.deepcopy(other.loss.state_dict()))
    for name in ("critic", "actor", "alpha"):
        optimizer = getattr(resumed, name)
        if optimizer is not None:
            optimizer.load_state_dict(copy.deepcopy(getattr(other, name).state_dict()))
    run(compiled, 3, seed=3)
    assert_same(agent, resumed)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_results_do_not_depend_on_the_place_in_memory(algorithm, module):
    agent, other = pair(algorithm)
    batch = make_batch(33)
    moved = batch.clone()
    for key, value in batch.items(True, True):
        room = torch.empty(value.numel() + 3, dtype=value.dtype)
        moved[key] = room[3:].view(value.shape).copy_(value)
    for each, rows in ((agent, batch), (other, moved)):
        update(each.compiled(module), rows, 0)
    assert_same(agent, other)


def test_a_row_does_not_depend_on_the_other_rows(module):
    agent, other = pair("td3")
    batch = make_batch(40)
    factors = agent.compiled(module).update_actor(batch)[1]["vmf_factor"]
    assert torch.equal(
        other.compiled(module).update_actor(batch[7:9])[1]["vmf_factor"], factors[7:9]
    )


def test_general_and_compiled_updates_alternate():
    expected, agent = pair("sac")
    compiled = agent.compiled()
    for number in range(6):
        batch = make_batch(20)
        for each in (expected, compiled if number % 2 else agent):
            update(each, batch.clone(), number)
    ours = agent.tensors()
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


def replace_data(agent):
    for parameter in agent.critic.param_groups[0]["params"]:
        parameter.data = parameter.data.clone()


def load_states(agent):
    agent.actor.load_state_dict(copy.deepcopy(agent.actor.state_dict()))


def change_learning_rate(agent):
    agent.critic.param_groups[0]["lr"] = 0.1


@pytest.mark.parametrize("change", [replace_data, load_states, change_learning_rate])
def test_replaced_tensors_and_options_are_noticed(change):
    agent, other = pair("td3")
    compiled = agent.compiled()
    run(compiled, 2)
    run(other.compiled(), 2)
    for each in (agent, other):
        change(each)
    run(compiled, 2, seed=2)
    run(other.compiled(), 2, seed=2)
    assert_same(agent, other)


def assign_target(agent):
    layer = agent.loss.target_qvalue_network_params.get(("module", "0"))
    layer["weight"] = layer["weight"].clone()


def transposed(agent):
    parameter = agent.critic.param_groups[0]["params"][0]
    parameter.data = parameter.data.mT.contiguous().mT


def in_double_precision(agent):
    agent.loss.to(torch.float64)


def hooked(agent):
    agent.loss.actor_network.register_forward_hook(lambda *args: None)


def tensor_hooked(agent):
    agent.actor.param_groups[0]["params"][0].register_hook(lambda gradient: gradient)


def shared(agent):
    layers = agent.loss.qvalue_network_params.get("module")
    bias = layers.get(("0", "bias"))
    bias.data = layers.get(("0", "weight")).data.view(-1)[: bias.numel()].view(bias.shape)


@pytest.mark.parametrize("change", [assign_target, transposed, in_double_precision, hooked, shared])
def test_what_became_unserved_is_refused(change):
    agent = Agent(make_loss("td3"))
    compiled = agent.compiled()
    run(compiled, 1)
    change(agent)
    with pytest.raises(NotServedError):
        compiled.update_critics(make_batch(8))


def with_gelu(agent):
    agent.loss.qvalue_network.module[1] = nn.GELU()


def with_dropout(agent):
    agent.loss.actor_network.module.insert(1, nn.Dropout())


def with_optimizer(name, make):
    def change(agent):
        setattr(agent, name, make(getattr(agent, name).param_groups[0]["params"]))

    return change


def without_reduction(agent):
    agent.loss.reduction = "none"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_gelu, "GELU"),
        (with_dropout, "Dropout"),
        (with_optimizer("critic", lambda params: SGD(params, lr=0.1)), "SGD"),
        (with_optimizer("actor", lambda params: Adam(params, amsgrad=True)), "amsgrad"),
        (with_optimizer("actor", lambda params: Adam(params, weight_decay=0.1)), "weight_decay"),
        (with_optimizer("actor", lambda params: Adam(params[1:])), "other parameters"),
        (without_reduction, "reduction"),
        (hooked, "hooks"),
        (tensor_hooked, "hooks"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(change, reason):
    agent = Agent(make_loss("td3"))
    change(agent)
    with pytest.raises(NotServedError, match=reason) as error:
        agent.compiled()
    assert "\n" not in str(error.value)


def test_other_losses_and_several_threads_are_refused():
    agent = Agent(make_loss("td3"))
    torch.set_num_threads(2)
    with pytest.raises(NotServedError, match="one thread"):
        agent.compiled()
    torch.set_num_threads(1)

    class Changed(VMFTD3Loss):
        pass

    agent.loss.__class__ = Changed
    with pytest.raises(NotServedError, match="Changed"):
        agent.compiled()


def test_batches_that_are_not_served_are_refused():
    batch = make_batch(6)
    storage = LazyTensorStorage(6)
    storage.set(torch.arange(6), batch)
    compiled = Agent(make_loss("td3")).compiled(storage=storage)
    with pytest.raises(NotServedError, match="shape"):
        compiled.update_critics(batch.reshape(2, 3))
    with pytest.raises(NotServedError, match="float64"):
        compiled.update_critics(batch.clone().update({"action": batch["action"].double()}))
    with pytest.raises(ValueError, match="one weight"):
        compiled.update_critics(batch.clone().update({"priority_weight": torch.ones(6, 1)}))
    with pytest.raises(IndexError, match="slot 6"):
        compiled.update_critics(TensorDict({"index": torch.tensor([0, 6])}, [2]))
    with pytest.raises(ValueError, match="elements"):
        compiled.update_critics(batch.clone().update({"action": batch["action"][:, :2]}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["observation", "reward", "first weight", "second weight"])
@pytest.mark.parametrize("rows", [9, 64])  # products of 64 rows and 128 units skip zeros
@pytest.mark.parametrize("algorithm", ["td3", "sac", "tqc"])
def test_numbers_that_are_not_finite_propagate_as_in_pytorch(algorithm, rows, place, value):
    shape = Shape() if rows == 9 else Shape(hidden=(128, 128), critic_hidden=(128, 128))
    expected, agent = pair(algorithm, shape)
    batch = make_batch(rows, shape)
    if "weight" in place:
        layer = "0" if place == "first weight" else "2"
        for each in (expected, agent):
            with torch.no_grad():
                each.loss.qvalue_network_params.get(("module", layer, "weight"))[0, 3, 2] = value
    else:
        (batch if place == "observation" else batch["next"])[place][4, 0] = value
    compiled = agent.compiled()
    for each in (expected, compiled):
        update(each, batch.clone(), 0)
    ours = agent.tensors()
    for name, tensor in expected.tensors().items():
        if name.startswith("loss."):
            assert torch.equal(tensor.isfinite(), ours[name].isfinite()), name


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-0.5, 2.0)])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_actions_equal_those_of_the_policy(algorithm, bounds, layer_norm, module):
    shape = Shape(11, 3, (40, 33), layer_norm=layer_norm, bounds=bounds)
    agent = Agent(make_loss(algorithm, shape))
    compiled = agent.compiled(module)
    observation, noise = torch.randn(11), torch.randn(3)
    low, high = bounds
    with torch.no_grad(), agent.loss.actor_network_params.to_module(agent.loss.actor_network):
        batch = make_batch(1, shape).update({"observation": observation[None]})
        if algorithm == "td3":
            center = agent.loss.actor_network(batch)["action"][0]
            drawn = (center + 0.3 * noise).clamp(low, high)
        else:
            found = agent.loss.actor_network.module[0](batch)
            middle, half = (low + high) / 2, (high - low) / 2
            center = middle + half * found["loc"][0].tanh()
            drawn = middle + half * (found["loc"][0] + noise * found["scale"][0]).tanh()
    for given, action in ((None, center), (noise.numpy(), drawn)):
        result = compiled.act(observation.numpy(), given, 0.3)
        np.testing.assert_allclose(result, action.numpy(), rtol=1e-5, atol=1e-5)
