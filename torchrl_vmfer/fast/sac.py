"""The updates of SAC on plain networks, as batched matrix products."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.plain_network import NotPlainError
from torchrl_vmfer.fast.stochastic import StochasticUpdates

__all__ = ["FastSAC"]


class FastSAC(StochasticUpdates):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFSACLoss`."""

    methods = ("qvalue_v2_loss", "actor_loss")

    @classmethod
    def check_options(cls, loss: Any) -> None:
        """Raises a :class:`NotPlainError` if an option of the loss has no fast path."""
        super().check_options(loss)
        for name in ("entropy_gradient", "skip_done_states"):
            if getattr(loss, name, False):
                raise NotPlainError(f"{name}=True")
        if loss.value_network_params is not None:
            raise NotPlainError("the loss has a value network")

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss, and the TD errors."""
        next_values = self._next_values(tensordict, self._target_critics)
        critic_loss, metadata = self._critic_loss(tensordict, *next_values)
        return critic_loss, {"td_error": metadata["error"].abs().amax(0)}
