"""The actor update of CrossQ on plain networks, as batched matrix products."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.stochastic import StochasticUpdates

__all__ = ["FastCrossQ"]


class FastCrossQ(StochasticUpdates):
    """The actor loss of :class:`~torchrl_vmfer.VMFCrossQLoss`.

    The critic loss, with normalization layers in training mode, uses TorchRL's general path.
    """

    methods = ("actor_loss",)
    evaluates_critics = True

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the log-density of the action, and metadata on the critics."""
        found = super().actor_loss(tensordict)
        self._loss.qvalue_network.train()  # as TorchRL's loss does
        return found
