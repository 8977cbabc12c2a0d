"""Losses with a fixed random state, and assertions that they equal TorchRL's or brute force."""

from __future__ import annotations

import torch

SEED = 5


def seeded(function, *args):
    """Calls a function with a fixed state of the random generator."""
    torch.manual_seed(SEED)
    return function(*args)


def perturb(params, critics, amount=0.3):
    """Perturbs the parameters of some critics."""
    generator = torch.Generator().manual_seed(9)
    for param in params.values(True, True):
        noise = torch.randn(param.shape, generator=generator)
        param.data[critics] += amount * noise[critics]


def total_loss(losses):
    """Sums all losses that ``forward`` returned."""
    return sum(value.sum() for name, value in losses.items() if name.startswith("loss_"))


def assert_same(algorithm, result, expected):
    """Asserts bitwise equality for TD3, and 1e-6 for the others, whose batched products differ."""
    if algorithm.name == "td3":
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def critic_named(used, values):
    """Returns the critic e of ``used=``, given the values ``[N, *batch]``."""
    return {"first": 0, "min": values.argmin(0), "mean": "mean"}[used]


def by_brute_force(brute_force, loss, batch, used, entropy=False):
    """Computes the factors of critic e and the resultant lengths, one critic after the other."""
    action = brute_force.policy_action(loss, batch, seed=SEED)
    gradients = brute_force.action_gradients(loss, batch, action, entropy=entropy)
    values = brute_force.critic_values(loss, batch, action)
    values = values[: getattr(loss, "target_count", len(values))]
    directions = gradients.double() / gradients.double().norm(dim=-1, keepdim=True)
    factors = brute_force.sampling_factor(gradients, critic_named(used, values))
    return factors, directions.mean(0).norm(dim=-1)


def assert_gradients_equal(loss, reference, tolerance=1e-6):
    """Asserts that the parameters of two losses have the same gradients, or none."""
    expected = dict(reference.named_parameters())
    for name, param in loss.named_parameters():
        gradient, other = param.grad, expected[name].grad
        assert (gradient is None) == (other is None), name
        if other is not None:
            scale = other.abs().max().clamp(min=1).item()
            torch.testing.assert_close(gradient, other, rtol=0, atol=tolerance * scale, msg=name)


def gradients(loss):
    """Copies the gradients of a loss by name, and resets them."""
    found = {
        name: param.grad.clone()
        for name, param in loss.named_parameters()
        if param.grad is not None
    }
    loss.zero_grad()
    return found
