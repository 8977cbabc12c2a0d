"""Base class of the fast updates: the critic loss and the critics' gradients.

TorchRL's losses support any network. If the actor and the critics are stacks of linear layers, most
of the cost of that generality can be avoided: the ensemble is one batched product per layer, no
intermediate result is stored in a TensorDict, and the gradients are computed together with the
loss, without autograd. The fast updates compute the same losses up to rounding, and draw the same
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import AUTO_LOSS_MASK_KEYS
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer.fast.agreement import factor_and_length, follow_lowest
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork
from torchrl_vmfer.fast.td_loss import DISTANCES, td_loss
from torchrl_vmfer.gradients import directed, followed_critic

__all__ = ["FastUpdates"]

# Entries that TorchRL's losses support and the fast path does not: masks, and the number of steps
# that a transition spans.
_NOT_FAST = (*AUTO_LOSS_MASK_KEYS, "steps_to_next_obs")
_NOT_FAST_ROOTS = {key if isinstance(key, str) else key[0] for key in _NOT_FAST}


class FastUpdates:
    """The updates of a loss with plain networks.

    Args:
        loss: the loss whose networks, options and keys are used.

    Raises:
        NotPlainError: if a network has no fast path.
    """

    methods: ClassVar[tuple[str, ...]]
    """The methods of the loss that the methods with the same names replace."""
    evaluates_critics: ClassVar[bool] = False
    """Whether the critics are in evaluation mode in all these methods."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        make = partial(PlainNetwork, loss.qvalue_network, in_eval_mode=self.evaluates_critics)
        self._trained_critics = make(loss.qvalue_network_params)
        # Extra critics are used only for measuring the agreement.
        self._num_target_critics = loss.target_count
        self._all_critics = self._trained_critics.detached()
        self._actor_critics = self._trained_critics.detached(slice(self._num_actor_critics))
        targets = make(loss.target_qvalue_network_params)
        self._target_critics = targets.detached(slice(self._num_target_critics))
        # Networks, each with the network derived from it.
        self._derived = [
            (self._trained_critics, self._all_critics),
            (targets, self._target_critics),
        ]

    def is_current(self) -> bool:
        """Whether the number of critics and the memory of all parameters are unchanged."""
        return (
            self._num_target_critics == self._loss.target_count
            and self._actor_critics.size == self._num_actor_critics
            and all(network.shares_memory(derived) for network, derived in self._derived)
        )

    @classmethod
    def check_options(cls, loss: Any) -> None:
        """Raises a :class:`NotPlainError` if an option of the loss has no fast path."""
        estimator = loss.value_estimator
        if type(estimator) is not TD0Estimator:
            raise NotPlainError(f"the value estimator {type(estimator).__name__} is not TD(0)")
        if estimator.average_rewards:
            raise NotPlainError("the value estimator averages rewards")
        if loss.loss_mask_key not in (None, "auto"):
            raise NotPlainError(f"the loss has a mask, {loss.loss_mask_key!r}")
        if loss.reduction == "none":
            raise NotPlainError("reduction='none'")
        if loss.loss_function not in DISTANCES:
            raise NotPlainError(f"loss_function={loss.loss_function!r}")
        keys, action = list(loss.qvalue_network.in_keys), loss.tensor_keys.action
        if len(keys) < 2 or action not in (keys[0], keys[-1]):
            raise NotPlainError("the critics do not read the action first or last")
        if list(loss.actor_network.in_keys) != [key for key in keys if key != action]:
            raise NotPlainError("actor and critics read different entries")

    def check_batch(self, tensordict: TensorDictBase) -> None:
        """Raises a :class:`NotPlainError` if a batch has no fast path.

        The fast path requires a flat batch of single steps without masks, in full precision.
        Nothing upstream of the networks, such as an encoder, may require gradients.
        """
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise NotPlainError("autocast is enabled")
        if tensordict.ndim != 1 or not len(tensordict):
            raise NotPlainError(f"the batch has the shape {list(tensordict.shape)}")
        if not _NOT_FAST_ROOTS.isdisjoint(tensordict.keys()):
            for key in _NOT_FAST:
                if tensordict.get(key, None) is not None:
                    raise NotPlainError(f"the batch has an entry {key!r}")
        for key in self._observation_keys:
            observation = tensordict.get(key, None)
            if observation is None:
                raise NotPlainError(f"the batch has no entry {key!r}")
            if observation.requires_grad:
                raise NotPlainError(f"the entry {key!r} of the batch requires gradients")
        action = tensordict.get(self._loss.tensor_keys.action, None)
        if action is not None and action.requires_grad:
            raise NotPlainError("the action in the batch requires gradients")

    @property
    def _num_actor_critics(self) -> int:
        """The number of critics that the actor loss uses."""
        return 1 if followed_critic(self._loss) == "first" else self._num_target_critics

    @property
    def _observation_keys(self) -> list[Any]:
        return self._loss.actor_network.in_keys

    def _observation(self, tensordict: TensorDictBase, *prefix: str) -> Tensor:
        entries = [tensordict.get((*prefix, key)).detach() for key in self._observation_keys]
        return entries[0] if len(entries) == 1 else torch.cat(entries, -1)

    def _critic_inputs(self, observation: Tensor, action: Tensor) -> tuple[Tensor, slice]:
        """The inputs of a critic, and the columns of the action in them."""
        if self._loss.qvalue_network.in_keys[0] == self._loss.tensor_keys.action:
            return torch.cat([action, observation], -1), slice(action.shape[-1])
        return torch.cat([observation, action], -1), slice(observation.shape[-1], None)

    def _evaluated(self, critics: PlainNetwork, observation: Tensor, action: Tensor) -> Tensor:
        """The outputs ``[N, B, K]`` of some critics."""
        inputs, _ = self._critic_inputs(observation, action)
        return critics(inputs.expand(critics.size, *inputs.shape))

    def _predicted(self, tensordict: TensorDictBase) -> tuple[Tensor, Callable[..., Any]]:
        """The outputs ``[N, B, K]`` for a batch, and a function to pull their gradients back."""
        action = tensordict.get(self._loss.tensor_keys.action)
        inputs, _ = self._critic_inputs(self._observation(tensordict), action)
        critics = self._all_critics
        return critics.with_pull_back(inputs.expand(critics.size, *inputs.shape))

    def _outcome(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
        """The rewards ``[B]``, whether the next states are terminal ``[B]``, and the discount."""
        keys, following = self._loss.tensor_keys, tensordict.get("next")
        terminated = following.get(keys.terminated, None)
        if terminated is None:
            terminated = following.get(keys.done)
        reward = following.get(keys.reward).detach().squeeze(-1)
        return reward, terminated.squeeze(-1), self._loss.value_estimator.gamma

    def _critic_loss(
        self, tensordict: TensorDictBase, next_values: Tensor, cost: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss and metadata: values ``[N, B]``, targets ``[B]``, errors ``[N, B]``.

        Args:
            tensordict: the batch.
            next_values: the values of the target critics in the next state, ``[M, B, 1]``.
            cost: subtracted from their minimum, ``[B]``.
        """
        values, pull_back = self._predicted(tensordict)
        values = values.squeeze(-1)
        found = td_loss(
            values,
            next_values.squeeze(-1),
            cost,
            *self._outcome(tensordict),
            self._weights(tensordict, values),
            self._loss.loss_function,
        )
        critic_loss = with_known_gradients(
            found.loss, self._trained_critics, pull_back, found.slope.unsqueeze(-1)
        )
        return critic_loss, {
            "error": found.error,
            "next_state_value": found.next_value,
            "pred_value": values,
            "target_value": found.target,
        }

    def _weights(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """The weight of each transition in the loss of the batch, ``[B]`` or ``[]``."""
        loss, is_mean = self._loss, self._loss.reduction == "mean"
        # TorchRL's losses that ignore importance weights have no such key.
        key = getattr(loss.tensor_keys, "priority_weight", None)
        is_weighted = key is not None and loss.use_prioritized_weights in (True, "auto")
        if not is_weighted or key not in tensordict:
            return like.new_tensor(1 / len(tensordict) if is_mean else 1.0)
        weights = tensordict.get(key)
        if weights.shape != tensordict.shape:
            raise ValueError(
                f"Got weights of shape {list(weights.shape)} for a batch of "
                f"{list(tensordict.shape)}: pass one weight for each transition."
            )
        return weights / weights.sum() if is_mean else weights

    def _policy_action(self, observation: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def action_gradients(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Computes :func:`~torchrl_vmfer.gradients.action_gradients` on the fast path."""
        observation = self._observation(tensordict)
        action = self._policy_action(observation)
        values, gradients = self._evaluate_critics(observation, action, measure=True)
        return values, directed(self._loss, -gradients, action)

    def _evaluate_critics(
        self, observation: Tensor, action: Tensor, measure: bool
    ) -> tuple[Tensor, Tensor]:
        """The critics' values ``[N, B]`` and action gradients at an action ``[B, A]``."""
        critics = self._all_critics if measure else self._actor_critics
        inputs, columns = self._critic_inputs(observation, action)
        inputs = inputs.expand(critics.size, *inputs.shape)
        values, gradients = critics.with_gradients(inputs, columns)
        # A mean of one value is slower.
        return values.squeeze(-1) if values.shape[-1] == 1 else values.mean(-1), gradients

    def _climbed(self, values: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the actor maximizes.

        Returns:
            the value ``[B]``, its gradient with respect to the action ``[B, A]``, and the number of
            the critic with the lowest value ``[B]``, if the actor follows it.
        """
        followed, count = followed_critic(self._loss), self._num_actor_critics
        if followed == "first":
            return values[0], gradients[0], None
        if followed == "mean":
            return values[:count].mean(0), gradients[:count].mean(0), None
        return follow_lowest(values[:count], gradients[:count])

    def _actor_metadata(
        self, gradients: Tensor, values: Tensor, action: Tensor, lowest: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Metadata of the actor loss.

        Args:
            gradients: the gradients of the critics, ``[N, B, A]``.
            values: their values, ``[N, B]``.
            action: the policy's action, ``[B, A]``.
            lowest: the number of the critic with the lowest value, if it is known.
        """
        return self._loss.agreement(gradients, values, action, factor_and_length, lowest)
