"""The updates of TD3 and TD3+BC on plain networks, as batched matrix products."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork

__all__ = ["FastTD3", "FastTD3BC"]


class FastTD3(FastUpdates):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFTD3Loss`."""

    methods = ("value_loss", "actor_loss")

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self._actor = PlainNetwork(loss.actor_network, loss.actor_network_params)
        self._policy = self._actor.detached()
        target_actor = PlainNetwork(loss.actor_network, loss.target_actor_network_params)
        self._target_actor = target_actor.detached()
        self._derived += [(self._actor, self._policy), (target_actor, self._target_actor)]

    @classmethod
    def check_options(cls, loss: Any) -> None:
        """Raises a :class:`NotPlainError` if an option of the loss has no fast path."""
        super().check_options(loss)
        if loss.actor_network.out_keys[-1] != loss.tensor_keys.action:
            raise NotPlainError("the actor does not return the action last")

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._policy(observation)

    def value_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss, and its metadata."""
        loss = self._loss
        noise = torch.randn_like(tensordict.get(loss.tensor_keys.action)) * loss.policy_noise
        observation = self._observation(tensordict, "next")
        action = self._target_actor(observation) + noise.clamp_(-loss.noise_clip, loss.noise_clip)
        action = action.clamp_(loss.min_action, loss.max_action)
        values = self._evaluated(self._target_critics, observation, action)
        critic_loss, metadata = self._critic_loss(tensordict, values)
        return critic_loss, {"td_error": metadata.pop("error").square(), **metadata}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the values of the critics, and their agreement."""
        observation = self._observation(tensordict)
        action, pull_back = self._policy.with_pull_back(observation)
        at = self._loss.perturbed(action) if self._loss.actor_noise else action
        values, gradients = self._evaluate_critics(observation, at, self._loss.measure)
        value, gradient, _ = self._climbed(values, gradients)
        objective, slope, metadata = self._objective(tensordict, action, value, gradient)
        actor_loss = with_known_gradients(objective, self._actor, pull_back, slope)
        metadata = {"state_action_value_actor": values, **metadata}
        return actor_loss, metadata | self._actor_metadata(gradients, values, action)

    def _objective(
        self, tensordict: TensorDictBase, action: Tensor, value: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The actor loss, its gradient with respect to the action ``[B, A]``, and metadata."""
        weights = self._weights(tensordict, value)
        slope = -weights.unsqueeze(-1) * gradient
        return -(value * weights).sum(), slope, {}


class FastTD3BC(FastTD3):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFTD3BCLoss`."""

    methods = ("qvalue_loss", "actor_loss")
    qvalue_loss = FastTD3.value_loss

    def _objective(
        self, tensordict: TensorDictBase, action: Tensor, value: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """TD3's loss times λ, and the squared distance to the actions of the batch."""
        objective, slope, _ = super()._objective(tensordict, action, value, gradient)
        scale = self._loss.alpha / value.abs().mean()
        distance = action - self._loss.stored_action(tensordict)
        cloning = distance.square().mean()
        # TorchRL adds the mean distance to the loss of every transition.
        weight = self._weights(tensordict, value).expand(len(action)).sum()
        objective = scale * objective + weight * cloning
        slope = scale * slope + (2 * weight / distance.numel()) * distance
        metadata = {"state_action_value_actor": value, "bc_loss": cloning, "lmbd": scale}
        return objective, slope, metadata
