"""Values and action gradients of an ensemble in one pass, on critics with known gradients."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_vmfer.gradients import linearized_values

CENTRES = torch.tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.1]])


class QuadraticCritics:
    """Critics Q_i(s, a) = -1.5 ‖a - c_i‖² + s·s with known gradients."""

    calls = 0

    def __call__(self, inputs):
        self.calls += 1
        action, state = inputs["action"], inputs["state"]
        centres = CENTRES.view(3, *(1,) * (action.ndim - 2), 2)
        distance = (action - centres).square().flatten(state.ndim - 1).sum(-1, keepdim=True)
        values = -1.5 * distance + state.square().sum(-1, keepdim=True)
        return inputs.copy().set("value", values)

    def loss_gradients(self, action):
        centres = CENTRES.view(3, *(1,) * (action.ndim - 1), 2)
        return 3.0 * (action - centres)


def make_inputs(batch=(4,), action_shape=(2,)):
    generator = torch.Generator().manual_seed(0)
    action = torch.randn(*batch, *action_shape, generator=generator).requires_grad_()
    state = torch.randn(*batch, 5, generator=generator)
    return action, TensorDict({"action": action, "state": state}, batch).expand(3, *batch)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(
    ("batch", "shape"), [((4,), (2,)), ((1,), (2,)), ((2, 3), (2,)), ((4,), (3, 2))]
)
def test_values_and_gradients_equal_those_of_the_critics(batch, shape, mean):
    critics = QuadraticCritics()
    action, inputs = make_inputs(batch, shape)
    values, gradients = linearized_values(
        critics, inputs, action_key="action", value_key="value", mean=mean
    )
    assert values.shape == (3, *batch, 1)
    assert critics.calls == 1
    assert set(inputs.keys()) == {"action", "state"}
    torch.testing.assert_close(values, critics(inputs)["value"], rtol=0, atol=0)
    expected = critics.loss_gradients(action.detach())
    torch.testing.assert_close(gradients, expected.flatten(1 + len(batch)))
    assert not gradients.requires_grad
    for value, gradient in zip(values, expected, strict=True):
        (received,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
        torch.testing.assert_close(received, -gradient)
    with torch.no_grad():
        _, same = linearized_values(critics, inputs, action_key="action", value_key="value")
    torch.testing.assert_close(same, gradients)
