"""The updates of TD3 on plain networks, as batched matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFTD3Loss

__all__ = ["FastTD3"]


class FastTD3(FastUpdates):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFTD3Loss`."""

    methods = ("value_loss", "actor_loss")
    _loss: VMFTD3Loss
    _num_actor_critics = 1  # the first

    def __init__(self, loss: VMFTD3Loss) -> None:
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
        next_value = self._next_value(observation, action)
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        return critic_loss, {"td_error": metadata.pop("error").square(), **metadata}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the values of the critics, and their agreement."""
        observation = self._observation(tensordict)
        action, pull_back = self._policy.with_pull_back(observation)
        at = self._loss.perturbed(action)
        values, gradients = self._evaluate_critics(observation, at, self._loss.measure)
        weights = self._weights(tensordict, values)
        actor_loss = with_known_gradients(
            -(values[0] * weights).sum(),
            self._actor,
            pull_back,
            -weights.unsqueeze(-1) * gradients[0],
        )
        metadata = self._agreement(gradients, values)
        return actor_loss, {"state_action_value_actor": values} | metadata
