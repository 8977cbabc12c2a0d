"""Values and action gradients of an ensemble in one pass, on critics with known gradients."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_vmfer.gradients import linearized_values

CENTRES = torch.tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.1]])


class QuadraticCritics:
    """Critics Q_i(s, a) = -w ‖a - c_i‖² + s·s with known gradients."""

    def __init__(self, action_key="action", value_key="value"):
        self.action_key, self.value_key = action_key, value_key
        self.weight = torch.nn.Parameter(torch.tensor(1.5))
        self.calls = 0

    def __call__(self, inputs):
        self.calls += 1
        action = inputs[self.action_key]
        state = inputs["state"]
        centres = CENTRES.view(3, *(1,) * (action.ndim - 2), 2)
        distance = (action - centres).square().flatten(state.ndim - 1).sum(-1, keepdim=True)
        values = -self.weight * distance + state.square().sum(-1, keepdim=True)
        return inputs.copy().set(self.value_key, values)

    def loss_gradients(self, action):
        centres = CENTRES.view(3, *(1,) * (action.ndim - 1), 2)
        return 3.0 * (action - centres)


def make_inputs(batch=(4,), action_shape=(2,), key="action"):
    generator = torch.Generator().manual_seed(0)
    action = torch.randn(*batch, *action_shape, generator=generator).requires_grad_()
    state = torch.randn(*batch, 5, generator=generator)
    inputs = TensorDict(batch_size=batch)
    inputs[key], inputs["state"] = action, state
    return action, state, inputs.expand(3, *batch)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("batch", [(4,), (1,), (2, 3)])
def test_values_and_gradients_equal_those_of_the_critics(batch, mean):
    critics = QuadraticCritics()
    action, _, inputs = make_inputs(batch)
    values, gradients = linearized_values(
        critics, inputs, action_key="action", value_key="value", mean=mean
    )
    assert values.shape == (3, *batch, 1)
    assert gradients.shape == (3, *batch, 2)
    assert critics.calls == 1
    assert set(inputs.keys()) == {"action", "state"}
    torch.testing.assert_close(values, critics(inputs)["value"], rtol=0, atol=0)
    torch.testing.assert_close(gradients, critics.loss_gradients(action.detach()))
    assert not gradients.requires_grad
    for value, gradient in zip(values, gradients, strict=True):
        (received,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
        torch.testing.assert_close(received, -gradient)
    with torch.no_grad():
        _, same = linearized_values(critics, inputs, action_key="action", value_key="value")
    torch.testing.assert_close(same, gradients)


def test_other_inputs_that_require_gradients_receive_them():
    critics = QuadraticCritics()
    _, state, inputs = make_inputs()
    state = state.requires_grad_()
    inputs = inputs.copy().set("state", state.expand(3, *state.shape))
    values, gradients = linearized_values(critics, inputs, action_key="action", value_key="value")
    values[1].sum().backward()
    assert critics.weight.grad is None
    assert gradients.shape == (3, 4, 2)
    torch.testing.assert_close(state.grad, 2 * state.detach())


def test_the_critics_are_evaluated_at_another_action_and_the_current_one_receives_the_gradient():
    critics = QuadraticCritics()
    action, _, inputs = make_inputs()
    at = (action + 0.25).detach()
    values, gradients = linearized_values(
        critics, inputs, action_key="action", value_key="value", at=at.expand(3, 4, 2)
    )
    there = inputs.copy().set("action", at.expand(3, 4, 2))
    torch.testing.assert_close(values, critics(there)["value"], rtol=0, atol=0)
    torch.testing.assert_close(gradients, critics.loss_gradients(at))
    (received,) = torch.autograd.grad(values[2].sum(), action)
    torch.testing.assert_close(received, -critics.loss_gradients(at)[2])


@pytest.mark.parametrize("action_key", [("agent", "action"), ("agent", ("inner", "action"))])
def test_nested_keys(action_key):
    value_key = ("agent", "value")
    critics = QuadraticCritics(action_key, value_key)
    action, _, inputs = make_inputs(key=action_key)
    values, gradients = linearized_values(
        critics, inputs, action_key=action_key, value_key=value_key
    )
    torch.testing.assert_close(gradients, critics.loss_gradients(action.detach()))
    (received,) = torch.autograd.grad(values[0].sum(), action)
    torch.testing.assert_close(received, -gradients[0])


def test_an_action_of_several_dimensions_is_one_direction():
    critics = QuadraticCritics()
    action, _, inputs = make_inputs(action_shape=(3, 2))
    values, gradients = linearized_values(critics, inputs, action_key="action", value_key="value")
    expected = critics.loss_gradients(action.detach())
    torch.testing.assert_close(gradients, expected.flatten(2))
    (received,) = torch.autograd.grad(values[0].sum(), action)
    torch.testing.assert_close(received, -expected[0])
