"""Explorers that compute the action for a single observation in one compiled call."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_vmfer.compiled.plain import Squashed, read_network
from torchrl_vmfer.compiled.stacked import (
    AdamState,
    NotServedError,
    Settings,
    StackedNetwork,
    StackedUpdates,
)
from torchrl_vmfer.networks import LocAndScale

__all__ = ["make_explorer"]


class CompiledExplorer(nn.Module):
    """Computes the action of an explorer for a single observation in one compiled call.

    It draws the same random numbers. The explorer itself computes batches.

    Args:
        explorer: as in :func:`make_explorer`. Its network is plain and ends with the usual last
            layer of its kind of actor.
    """

    def __init__(self, explorer: nn.Module) -> None:
        super().__init__()
        self.explorer: Any = explorer
        self._bind()

    def _bind(self) -> None:
        self.noise, network = self.explorer.noise, self.explorer.network
        plain = read_network(network, TensorDict.from_module(network))  # type: ignore[arg-type]
        expected = LocAndScale if self.noise is None else Squashed
        if type(plain.last) is not expected:
            raise NotServedError(f"the actor does not end with {expected.__name__}")
        self._tensors = plain.tensors()
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        states = [AdamState(tensor.detach()) for tensor in self._tensors]
        is_gaussian, (low, high) = self.noise is None, LocAndScale.bounds
        self._size = plain.sizes[-1] // (1 + is_gaussian)
        settings = Settings(
            plain.sizes[0], self._size, is_gaussian=is_gaussian, log_low=low, log_high=high
        )
        actor = StackedNetwork(plain.sizes, states, norm_eps=plain.norm_eps)
        self._updates: Any = StackedUpdates(settings, actor)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_tensors": [], "_addresses": [-1], "_updates": None}

    def forward(self, observation: Tensor) -> Tensor:
        """Returns an action."""
        is_single = observation.ndim == 1 and observation.is_cpu and not torch.is_grad_enabled()
        if not is_single or observation.dtype is not torch.float32 or not self._is_current():
            return self.explorer(observation)
        noise = None
        exploration = exploration_type()
        if exploration is ExplorationType.RANDOM or (
            exploration is None and self.noise is not None
        ):
            noise = torch.randn(self._size, dtype=torch.float32, device="cpu").numpy()
        array = observation.contiguous().numpy()
        return torch.from_numpy(self._updates.act(array, noise, self.noise or 0.0)[0])

    def _is_current(self) -> bool:
        """Whether the parameters in use are those of the network, if need be after binding."""
        is_same = list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        if not is_same or not all(map(Tensor.is_contiguous, self._tensors)):
            try:
                self._bind()
            except NotServedError:  # for instance, a parameter was transposed
                return False
        return True


def make_explorer(explorer: nn.Module) -> nn.Module:
    """Makes an explorer use the compiled function where possible.

    Args:
        explorer: a module that returns the action for an observation, with the actor's ``network``
            and the standard deviation of its ``noise``, or ``None`` for a Gaussian actor.
    """
    try:
        return CompiledExplorer(explorer)
    except NotServedError:
        return explorer
