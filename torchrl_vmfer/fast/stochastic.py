"""Base class of the fast updates with a stochastic policy: SAC and related algorithms."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.modules import (
    ProbabilisticActor,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
)

from torchrl_vmfer._torchrl import temperature
from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork
from torchrl_vmfer.fast.squashed_gaussian import SquashedGaussian

__all__ = ["StochasticUpdates"]

_POLICIES = (
    ProbabilisticActor,
    ProbabilisticTensorDictSequential,
    SafeProbabilisticTensorDictSequential,
)
_HEADS = (ProbabilisticTensorDictModule, SafeProbabilisticModule)


class StochasticUpdates(FastUpdates):
    """The actor loss of a squashed Gaussian policy, and the soft values of the next state.

    The actor maximizes the minimum or the mean of the critics, as in the loss.
    """

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        network, head = _network_and_head(loss.actor_network)
        self._squashed = SquashedGaussian(head)
        self._actor = PlainNetwork(
            network, loss.actor_network_params, last=self._squashed.bounded_mean()
        )
        self._policy = self._actor.detached()
        self._derived.append((self._actor, self._policy))

    def _act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action sampled from the policy, and its log-density."""
        mean, deviation = self._policy(observation)
        squashed, log_prob = self._squashed(mean, deviation, torch.randn_like(mean))
        return self._squashed.stretch(squashed), log_prob

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._act(observation)[0]

    def _soft_values(self, tensordict: TensorDictBase, critics: PlainNetwork) -> Tensor:
        """The values Q_i - α log π ``[N, B, K]`` at an action sampled in the next state."""
        observation = self._observation(tensordict, "next")
        action, log_prob = self._act(observation)
        entropy = temperature(self._loss) * log_prob.unsqueeze(-1)
        return self._evaluated(critics, observation, action) - entropy

    def _actor_weights(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """The weight of each transition in the actor loss, ``[B]`` or ``[]``."""
        return self._weights(tensordict, like)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the log-density of the action, and metadata on the critics."""
        observation = self._observation(tensordict)
        (mean, deviation), pull_back = self._policy.with_pull_back(observation)
        noise = torch.randn_like(mean)
        squashed, log_prob = self._squashed(mean, deviation, noise)
        action = self._squashed.stretch(squashed)
        values, gradients = self._evaluate_critics(observation, action, self._loss.measure)
        value, gradient = self._climbed(values, gradients)
        alpha, weights = temperature(self._loss), self._actor_weights(tensordict, values)
        of_rows = weights.unsqueeze(-1)
        slopes = self._squashed.slopes(
            -of_rows * gradient, alpha * of_rows, squashed, deviation, noise
        )
        actor_loss = ((alpha * log_prob - value) * weights).sum()
        return with_known_gradients(actor_loss, self._actor, pull_back, *slopes), {
            "log_prob": log_prob,
            **self._actor_metadata(gradients, values, action),
        }


def _network_and_head(actor: Any) -> tuple[nn.Module, Any]:
    """The network of a policy, and the module that builds its distribution."""
    parts = list(actor.module.children()) if type(actor) in _POLICIES else []
    if len(parts) < 2 or type(parts[-1]) not in _HEADS:
        raise NotPlainError(f"{type(actor).__name__} is not a network with a distribution")
    *networks, head = parts
    if not list(networks[-1].out_keys) == list(head.in_keys) == ["loc", "scale"]:
        raise NotPlainError("the network does not return `loc` and `scale`, in this order")
    return TensorDictSequential(*networks), head
