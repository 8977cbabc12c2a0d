"""Explorers that compute the action for a single observation in one compiled function."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_vmfer.fast.compiled_stack import CompiledStack
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork
from torchrl_vmfer.networks import Explorer, LocAndScale

__all__ = ["make_explorer"]


class FastExplorer(Explorer):
    """An :class:`~torchrl_vmfer.networks.Explorer` that calls the function of ``policy.c``.

    It draws the same random numbers. Batches are computed as by the parent class.

    Args:
        network: a network that ends with the usual last layer of its kind of actor.
        noise: as in the parent class.
    """

    network: PlainNetwork

    def forward(self, observation: Tensor) -> Tensor:
        """Returns an action."""
        stack = self.network.linear_stack
        if not (isinstance(stack, CompiledStack) and stack.can_act(observation)):
            return super().forward(observation)
        if self.noise is not None:
            return stack.act(observation, _normal(stack.num_outputs), self.noise)
        is_random = exploration_type() is ExplorationType.RANDOM
        return stack.act(observation, _normal(stack.num_outputs // 2) if is_random else None)


def make_explorer(network: nn.Module, noise: float | None = None) -> Explorer:
    """Makes the explorer of a network, which uses compiled functions where possible.

    Args:
        network: as in :class:`~torchrl_vmfer.networks.Explorer`. Its parameters must be changed in
            place: ``load_state_dict(..., assign=True)`` has no effect on the explorer.
        noise: as there.
    """
    try:
        plain = PlainNetwork(network, TensorDict.from_module(network))
    except NotPlainError:
        return Explorer(network, noise)
    usual = LocAndScale if noise is None else nn.Tanh
    is_usual = [type(step) for step in plain.following] == [usual]
    return (FastExplorer if is_usual else Explorer)(plain, noise)


def _normal(count: int) -> Tensor:
    return torch.randn(count, dtype=torch.float32, device="cpu")
