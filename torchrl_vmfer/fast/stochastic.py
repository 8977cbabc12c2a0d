"""Base class of the fast updates with a stochastic policy: SAC and related algorithms."""

from __future__ import annotations

from typing import Any

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
from torchrl_vmfer.fast.kernels import load_kernels
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork
from torchrl_vmfer.fast.squashed_gaussian import CompiledSquashedGaussian, SquashedGaussian
from torchrl_vmfer.networks import LocAndScale

__all__ = ["StochasticUpdates"]

_POLICIES = (
    ProbabilisticActor,
    ProbabilisticTensorDictSequential,
    SafeProbabilisticTensorDictSequential,
)
_HEADS = (ProbabilisticTensorDictModule, SafeProbabilisticModule)


class StochasticUpdates(FastUpdates):
    """The actor loss of a squashed Gaussian policy, and the values of the next state.

    The actor maximizes the minimum or the mean of the critics, as in the loss.
    """

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        network, head = _network_and_head(loss.actor_network)
        self._squashed = SquashedGaussian(head)
        last = self._squashed.bounded_mean()
        self._actor = PlainNetwork(network, loss.actor_network_params, last=last)
        kernels = load_kernels()
        if kernels is not None and type(self._actor.last) is LocAndScale:
            self._squashed = CompiledSquashedGaussian(head, kernels)
            self._actor = self._actor.without_last()
        self._policy = self._actor.detached()
        self._derived.append((self._actor, self._policy))

    def _act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action sampled from the policy, and its log-density."""
        outputs = self._policy(observation)
        squashed, log_prob = self._squashed.draw(outputs, self._squashed.noise(outputs))
        return self._squashed.stretch(squashed), log_prob

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._act(observation)[0]

    def _next_values(
        self, tensordict: TensorDictBase, critics: PlainNetwork
    ) -> tuple[Tensor, Tensor]:
        """The values Q_i ``[N, B, K]`` and α log π ``[B]`` at an action in the next state."""
        observation = self._observation(tensordict, "next")
        action, log_prob = self._act(observation)
        values = self._evaluated(critics, observation, action)
        return values, temperature(self._loss) * log_prob

    def _actor_weights(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """The weight of each transition in the actor loss, ``[B]`` or ``[]``."""
        return self._weights(tensordict, like)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the log-density of the action, and metadata on the critics."""
        observation = self._observation(tensordict)
        outputs, pull_back = self._policy.with_pull_back(observation)
        noise = self._squashed.noise(outputs)
        squashed, log_prob = self._squashed.draw(outputs, noise)
        action = self._squashed.stretch(squashed)
        values, gradients = self._evaluate_critics(observation, action, self._loss.measure)
        value, gradient, lowest = self._climbed(values, gradients)
        actor_loss, slopes = self._squashed.actor_loss(
            outputs,
            noise,
            squashed,
            log_prob,
            value,
            gradient,
            temperature(self._loss),
            self._actor_weights(tensordict, values),
        )
        return with_known_gradients(actor_loss, self._actor, pull_back, *slopes), {
            "log_prob": log_prob,
            **self._actor_metadata(gradients, values, action, lowest),
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
