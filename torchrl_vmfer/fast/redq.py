"""The updates of REDQ on plain networks, as batched matrix products."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.plain_network import NotPlainError
from torchrl_vmfer.fast.stochastic import StochasticUpdates

__all__ = ["FastREDQ"]


class FastREDQ(StochasticUpdates):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFREDQLoss`."""

    methods = ("qvalue_loss", "actor_loss")

    @classmethod
    def check_options(cls, loss: Any) -> None:
        """Raises a :class:`NotPlainError` if an option of the loss has no fast path."""
        super().check_options(loss)
        if loss.gSDE:
            raise NotPlainError("gSDE=True")

    def qvalue_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss, and the TD errors."""
        loss = self._loss
        subset = torch.randperm(loss.num_qvalue_nets)[: loss.sub_sample_len].sort().values
        next_values = self._next_values(tensordict, self._target_critics.detached(subset))
        critic_loss, metadata = self._critic_loss(tensordict, *next_values)
        return critic_loss, {"td_error": metadata["error"].abs().amax(0)}

    def _weights(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """The weight of each transition in one critic's loss; a mean also averages over critics."""
        weights = super()._weights(tensordict, like)
        return weights / self._loss.num_qvalue_nets if self._loss.reduction == "mean" else weights

    def _actor_weights(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        return self._loss.num_qvalue_nets * self._weights(tensordict, like)

    def _actor_metadata(
        self, gradients: Tensor, values: Tensor, action: Tensor, lowest: Tensor | None = None
    ) -> dict[str, Tensor]:
        metadata = super()._actor_metadata(gradients, values, action, lowest)
        return {"state_action_value_actor": values, **metadata}
