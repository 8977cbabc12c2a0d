"""Critics that learn from shots, and actors that follow their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from vmfer_recipes.toy.environment import ACTION_BOUND, INITIAL_STATE, reward
from vmfer_recipes.toy.networks import Networks, from_each

__all__ = ["Actors", "Critics", "Shots", "anywhere"]

_STATE = torch.tensor([INITIAL_STATE])  # a batch of one


def anywhere(generators: Sequence[torch.Generator]) -> Tensor:
    """One action for each seed, spread evenly over the action space: ``[1, seed, 2]``."""
    return ACTION_BOUND * (2 * from_each(generators, 2)[None] - 1)


class Shots:
    """The replay buffers: the actions of all shots, and their rewards.

    Args:
        aim: the actions of the next shots, ``[buffer, seed, 2]``.
        buffers: how many buffers each seed has.
        capacity: how many shots each of them will hold.
        generators: one per seed.
    """

    def __init__(
        self,
        aim: Callable[[], Tensor],
        buffers: int,
        capacity: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self._aim = aim
        self._generators = generators
        self._actions = torch.empty(buffers, len(generators), capacity, 2)
        self._size = 0

    def fire(self, progress: Fraction) -> None:
        """Adds the shots that are due after this part of the training."""
        while self._size < progress * self._actions.shape[2]:
            self._actions[:, :, self._size] = self._aim()
            self._size += 1

    def sample(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Actions ``[buffer, seed, batch, 2]`` and their rewards, drawn uniformly.

        All buffers of a seed are read at the same places.
        """
        index = (from_each(self._generators, batch_size) * self._size).long()
        # In single precision the largest number below one may round up.
        index = index.clamp(max=self._size - 1)
        actions = self._actions.take_along_dim(index[None, ..., None], 2)
        return actions, reward(actions)


class Critics:
    """Two critics for each seed.

    Args:
        hidden: the sizes of their hidden layers.
        lr: their learning rate.
        generators: one per seed.
    """

    def __init__(
        self, hidden: Sequence[int], lr: float, generators: Sequence[torch.Generator]
    ) -> None:
        self.networks = Networks(2, [4, *hidden, 1], generators)
        self._optimizer = torch.optim.Adam(self.networks.parameters, lr, fused=True)

    def values(self, actions: Tensor, *, frozen: bool = False) -> Tensor:
        """Q_i(s₀, a) ``[critic, seed, batch]`` for actions ``[*, batch, 2]``."""
        states = _STATE.expand_as(actions)
        return self.networks(torch.cat([states, actions], -1), frozen=frozen).squeeze(-1)

    def update(self, batch: tuple[Tensor, Tensor]) -> None:
        """One step towards the rewards: an episode has one step, so nothing is bootstrapped."""
        actions, rewards = batch
        errors = self.values(actions) - rewards
        # The sum over networks keeps the gradient of each what it would be on its own.
        _descend(self._optimizer, errors.square().mean(-1).sum())

    def gradients(self, actions: Tensor) -> Tensor:
        """∂l_i/∂a ``[critic, seed, batch, 2]`` of l_i = -Q_i, for actions ``[seed, batch, 2]``."""
        actions = actions.detach().expand(*self.networks.shape, -1, -1).clone().requires_grad_()
        (gradients,) = torch.autograd.grad(-self.values(actions, frozen=True).sum(), actions)
        return gradients


class Actors:
    """Deterministic policies that start as the same network, one for each way and seed.

    Args:
        ways: how many there are.
        hidden: the sizes of their hidden layers.
        lr: their learning rate.
        generators: one per seed.
    """

    def __init__(
        self, ways: int, hidden: Sequence[int], lr: float, generators: Sequence[torch.Generator]
    ) -> None:
        self._networks = Networks(1, [2, *hidden, 2], generators).copied(ways)
        self._optimizer = torch.optim.Adam(self._networks.parameters, lr, fused=True)

    def actions(self) -> Tensor:
        """π(s₀) ``[way, seed, 2]``."""
        return ACTION_BOUND * self._networks(_STATE).squeeze(-2).tanh()

    def explore(self, noise: float, generators: Sequence[torch.Generator]) -> Tensor:
        """:meth:`actions` with the same normally distributed noise for all ways of a seed."""
        actions = self.actions().detach() + noise * from_each(generators, 2, normal=True)
        return actions.clamp(-ACTION_BOUND, ACTION_BOUND)

    def update(self, actions: Tensor, gradients: Tensor, used: Tensor) -> None:
        """One step along the mean gradient of the transitions used.

        If none is used, the gradient is zero, and Adam continues with its momentum.

        Args:
            actions: the current :meth:`actions`.
            gradients: ∂l_1/∂a ``[way, seed, batch, 2]``.
            used: which of them count, ``[way, seed, batch]``.
        """
        count = used.sum(-1, keepdim=True).clamp(min=1)
        mean = (gradients * used[..., None]).sum(-2) / count
        _descend(self._optimizer, (actions * mean).sum())


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
