"""Factors of transitions by brute force: one critic, and one transition, after the other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from helpers.losses import SEED


def policy_action(loss, batch, *, seed=None, params=None) -> Tensor:
    """Returns the action of the policy, drawn with the seed if it is stochastic."""
    params = loss.actor_network_params if params is None else params
    with params.to_module(loss.actor_network):
        if not hasattr(loss.actor_network, "get_dist"):
            return loss.actor_network(batch.copy()).get(loss.tensor_keys.action)
        with set_exploration_type(ExplorationType.RANDOM):
            policy = loss.actor_network.get_dist(batch.copy())
    torch.manual_seed(seed)
    return policy.rsample()


def critic_values(loss, batch, action, params=None) -> Tensor:
    """Computes the values ``[N, *batch]`` of the critics, one critic after the other."""
    params = loss.qvalue_network_params if params is None else params
    values = []
    for i in range(params.batch_size[0]):
        inputs = batch.copy().set(loss.tensor_keys.action, action)
        with params[i].to_module(loss.qvalue_network):
            value = loss.qvalue_network(inputs).get(loss.tensor_keys.state_action_value)
        values.append(value.mean(-1))
    return torch.stack(values)


def action_gradients(loss, batch, action, *, entropy=False) -> Tensor:
    """Computes ∂l_i/∂a ``[N, *batch, action]`` with one ``torch.autograd.grad`` per critic."""
    action = action.detach().requires_grad_()
    losses = -critic_values(loss, batch, action)
    if entropy:
        with torch.no_grad(), loss.actor_network_params.to_module(loss.actor_network):
            policy = loss.actor_network.get_dist(batch.copy())
        losses = losses + loss.log_alpha.exp().detach() * policy.log_prob(action)
    return torch.stack(
        [torch.autograd.grad(each.sum(), action, retain_graph=True)[0] for each in losses]
    )


def sampling_factor(gradients, used) -> Tensor:
    """Computes exp(R μᵀx_e) with NumPy in double precision, one transition after the other."""
    gradients = gradients.detach().double().numpy()
    batch_size = gradients.shape[1:-1]
    used = np.broadcast_to(np.asarray(used), batch_size)
    sums = gradients.sum(0)
    factors = np.empty(batch_size)
    for j in np.ndindex(batch_size):
        x = [g[j] / np.linalg.norm(g[j]) for g in gradients]
        mean = np.mean(x, axis=0)
        length = np.linalg.norm(mean)
        x_e = sums[j] / np.linalg.norm(sums[j]) if used[j] == "mean" else x[used[j]]
        factors[j] = np.exp(length * np.dot(mean / length, x_e))
    return torch.as_tensor(factors)


def critic_named(used, values):
    """Returns the critic e of ``used=``, given the values ``[N, *batch]``."""
    return {"first": 0, "min": values.argmin(0), "mean": "mean"}[used]


def factors_and_lengths(loss, batch, used, entropy=False):
    """Computes the factors of critic e and the resultant lengths, one critic after the other."""
    action = policy_action(loss, batch, seed=SEED)
    gradients = action_gradients(loss, batch, action, entropy=entropy)
    values = critic_values(loss, batch, action)
    values = values[: getattr(loss, "target_count", len(values))]
    directions = gradients.double() / gradients.double().norm(dim=-1, keepdim=True)
    factors = sampling_factor(gradients, critic_named(used, values))
    return factors, directions.mean(0).norm(dim=-1)
