"""Many small networks of one shape, evaluated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Networks", "from_each"]


def from_each(generators: Sequence[torch.Generator], *shape: int, normal: bool = False) -> Tensor:
    """Random numbers ``[seeds, *shape]``, the k-th part drawn from the k-th generator.

    A seed thus sees the same numbers, however many others are trained with it.

    Args:
        generators: one per seed.
        *shape: what to draw from each.
        normal: whether from the standard normal distribution, or evenly from [0, 1).
    """
    draw = torch.randn if normal else torch.rand
    return torch.stack([draw(*shape, generator=generator) for generator in generators])


class Networks:
    """ReLU networks in groups of one per seed: ``[group, seed]``.

    Args:
        groups: how many networks each seed has.
        sizes: the numbers of units from the inputs to the outputs.
        generators: the source of the initial weights, one per seed. Their distribution is that
            of ``torch.nn.Linear``.
    """

    def __init__(
        self, groups: int, sizes: Sequence[int], generators: Sequence[torch.Generator]
    ) -> None:
        self.shape = (groups, len(generators))
        self.parameters: list[Tensor] = []
        for inputs, outputs in itertools.pairwise(sizes):
            for rows in (inputs, 1):  # weights, then biases
                bound = 1 / math.sqrt(inputs)
                values = from_each(generators, groups, rows, outputs).transpose(0, 1)
                values = (values * 2 - 1) * bound
                self.parameters.append(values.flatten(0, 1).requires_grad_())

    def copied(self, groups: int) -> Networks:
        """The same networks, each seed's first one repeated ``groups`` times."""
        copy = object.__new__(Networks)
        copy.shape = (groups, self.shape[1])
        copy.parameters = [
            values.detach()[: self.shape[1]].repeat(groups, 1, 1).requires_grad_()
            for values in self.parameters
        ]
        return copy

    def __call__(self, inputs: Tensor, *, frozen: bool = False) -> Tensor:
        """Outputs ``[group, seed, batch, out]`` for inputs ``[group, seed, batch, in]``.

        Args:
            inputs: what each network reads; dimensions of one are expanded.
            frozen: whether to leave the parameters out of the graph.
        """
        parameters = [p.detach() for p in self.parameters] if frozen else self.parameters
        values = inputs.expand(*self.shape, *inputs.shape[-2:]).flatten(0, 1)
        for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
            if weight is not parameters[0]:
                values = values.relu_()  # in place, which autograd allows here
            if weight.shape[-1] == 1:  # as a matrix product, one column takes several times as long
                values = (values * weight.mT).sum(-1, keepdim=True) + bias
            else:
                values = torch.baddbmm(bias, values, weight)
        return values.unflatten(0, self.shape)
