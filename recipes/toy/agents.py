"""The Shooting environment, critics that learn from shots, and actors that follow their gradients.

An episode is one shot from the same state, rewarded by how close to the target's center it lands.
The networks of all seeds are trained together, each with the random numbers of its seed.

The paper's action space is the whole plane. Here it is the square [-1, 1]², because TD3's policy
ends in a tanh, and uniformly distributed shots require a bounded space.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

OPTIMAL_ACTION = (-0.5, -0.5)
_STATE = torch.tensor([[-0.5, -0.5]])  # a batch of one

Generators = Sequence[torch.Generator]  # one per seed


def reward(action: Tensor) -> Tensor:
    """R = -‖a - a*‖ for actions ``[*, 2]``."""
    return -torch.linalg.vector_norm(action - action.new_tensor(OPTIMAL_ACTION), dim=-1)


def action_grid(bound: float = 1.0) -> Tensor:
    """Actions ``[61, 61, 2]`` of a square, in the order in which Matplotlib draws a surface."""
    line = torch.linspace(-bound, bound, 61)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)


def from_each(generators: Generators, *shape: int, normal: bool = False) -> Tensor:
    """Random numbers ``[seed, *shape]``, those of a seed independent of the number of seeds."""
    draw = torch.randn if normal else torch.rand
    return torch.stack([draw(*shape, generator=generator) for generator in generators])


class Networks:
    """ReLU networks, ``count`` for each seed and copies of them, initialized like ``nn.Linear``."""

    def __init__(
        self, count: int, sizes: Sequence[int], lr: float, generators: Generators, copies: int = 1
    ) -> None:
        self.shape = (count * copies, len(generators))
        self.parameters: list[Tensor] = []
        for inputs, outputs in itertools.pairwise(sizes):
            for rows in (inputs, 1):  # weights, then biases
                values = from_each(generators, count, rows, outputs).transpose(0, 1)
                values = ((values * 2 - 1) * (1 / math.sqrt(inputs))).flatten(0, 1)
                self.parameters.append(values.repeat(copies, 1, 1).requires_grad_())
        self._optimizer = torch.optim.Adam(self.parameters, lr, fused=True)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Maps ``[network, seed, batch, in]``, or what expands to it, to ``[..., out]``."""
        values = inputs.expand(*self.shape, *inputs.shape[-2:]).flatten(0, 1)
        for weight, bias in zip(self.parameters[::2], self.parameters[1::2], strict=True):
            if weight is not self.parameters[0]:
                values = values.relu_()  # in place, which autograd allows here
            if weight.shape[-1] == 1:  # as a matrix product, one column takes several times as long
                values = (values * weight.mT).sum(-1, keepdim=True) + bias
            else:
                values = torch.baddbmm(bias, values, weight)
        return values.unflatten(0, self.shape)

    def descend(self, loss: Tensor) -> None:
        """Takes a step of Adam."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class Critics(Networks):
    """Two critics for each seed."""

    def __init__(self, hidden: Sequence[int], lr: float, generators: Generators) -> None:
        super().__init__(2, [4, *hidden, 1], lr, generators)

    def values(self, actions: Tensor) -> Tensor:
        """Q_i(s₀, a) ``[critic, seed, batch]`` for actions ``[*, batch, 2]``."""
        return self(torch.cat([_STATE.expand_as(actions), actions], -1)).squeeze(-1)

    def update(self, actions: Tensor) -> None:
        """Takes a step toward the rewards. Episodes have one step, so nothing is bootstrapped."""
        errors = self.values(actions) - reward(actions)
        # The sum over networks keeps the gradient of each what it would be on its own.
        self.descend(errors.square().mean(-1).sum())

    def gradients(self, actions: Tensor) -> Tensor:
        """∂l_i/∂a ``[critic, seed, batch, 2]`` of l_i = -Q_i, for actions ``[seed, batch, 2]``."""
        actions = actions.detach().expand(*self.shape, -1, -1).clone().requires_grad_()
        (gradients,) = torch.autograd.grad(-self.values(actions).sum(), actions)
        return gradients


class FixedCritics:
    """The critics Q_i(a) = -‖a - peak_i + ε‖² of the simple example, which do not learn.

    The errors ε expand to ``[critic, *, *, 2]``. The peak of Q_2 is at (1, 1).
    """

    def __init__(self, errors: Tensor, first_peak: float = -1.0) -> None:
        self._errors = errors
        self._peaks = torch.tensor([first_peak, 1.0])[:, None, None, None]

    def values(self, actions: Tensor) -> Tensor:
        """Q_i ``[critic, *, *]`` for actions ``[*, *, 2]``."""
        return -(actions - self._peaks + self._errors).square().sum(-1)

    def update(self, actions: Tensor) -> None:
        """Ignores the shots."""

    def gradients(self, actions: Tensor) -> Tensor:
        """∂l_i/∂a ``[critic, *, *, 2]`` of l_i = -Q_i, for actions ``[*, *, 2]``."""
        return 2 * (actions - self._peaks + self._errors)


class Actors(Networks):
    """Deterministic policies that start as the same network, one for each way and seed."""

    def __init__(self, ways: int, hidden: Sequence[int], lr: float, generators: Generators) -> None:
        super().__init__(1, [2, *hidden, 2], lr, generators, copies=ways)

    def actions(self) -> Tensor:
        """π(s₀) ``[way, seed, 2]``."""
        return self(_STATE).squeeze(-2).tanh()

    def update(self, actions: Tensor, gradients: Tensor, used: Tensor) -> None:
        """Takes a step along the mean of the gradients ∂l_1/∂a ``[way, seed, batch, 2]`` used.

        If none is used, the mean is zero, and Adam continues with its momentum.
        """
        count = used.sum(-1, keepdim=True).clamp(min=1)
        mean = (gradients * used[..., None]).sum(-2) / count
        self.descend((actions * mean).sum())
