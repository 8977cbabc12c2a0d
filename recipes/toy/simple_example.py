"""The paper's simple example: two quadratic critics whose peaks lie at -1 and 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vmfer_recipes.toy.resampling import angle

__all__ = ["Example", "FixedCritics", "simple_example", "square_grid"]


class FixedCritics:
    """Two critics Q_i(a) = -‖a - peak_i + ε‖² that do not learn.

    Args:
        errors: ε, which expands to ``[critic, *, *, 2]``.
        first_peak: both coordinates of the peak of Q_1. That of Q_2 is at (1, 1).
    """

    def __init__(self, errors: Tensor, first_peak: float = -1.0) -> None:
        self._errors = errors
        self._peaks = torch.tensor([first_peak, 1.0])[:, None, None, None]

    def values(self, actions: Tensor, *, frozen: bool = True) -> Tensor:
        """Q_i ``[critic, *, *]`` for actions ``[*, *, 2]``."""
        return -self._offsets(actions).square().sum(-1)

    def update(self, batch: tuple[Tensor, Tensor]) -> None:
        """Ignores the shots."""

    def gradients(self, actions: Tensor) -> Tensor:
        """∂l_i/∂a ``[critic, *, *, 2]`` of l_i = -Q_i, for actions ``[*, *, 2]``."""
        return 2 * self._offsets(actions)

    def _offsets(self, actions: Tensor) -> Tensor:
        return actions - self._peaks + self._errors


@dataclass(frozen=True)
class Example:
    """The critics over a square of actions.

    Attributes:
        actions: the grid, ``[side, side, 2]``.
        values: Q_i ``[critic, side, side]``.
        smooth_values: the same without noise.
        gradients: ∂Q_i/∂a ``[critic, side, side, 2]``.
        angles: between the gradients, in degrees, ``[side, side]``.
    """

    actions: Tensor
    values: Tensor
    smooth_values: Tensor
    gradients: Tensor
    angles: Tensor


def square_grid(bound: float, side: int) -> Tensor:
    """Actions ``[side, side, 2]`` of a square; the first one grows along the second dimension.

    That is the order in which Matplotlib draws a surface.
    """
    line = torch.linspace(-bound, bound, side)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)


def simple_example(noise: float, seed: int, bound: float = 3.0, side: int = 61) -> Example:
    """The values and gradients of both critics at every action of a grid.

    The noise ε represents the errors of a critic that is still learning, so each critic draws its
    own at each action.

    Args:
        noise: the standard deviation of ε.
        seed: of the noise.
        bound: half the width of the square.
        side: the grid's points along a side.
    """
    actions = square_grid(bound, side)
    generator = torch.Generator().manual_seed(seed)
    epsilon = noise * torch.randn(2, *actions.shape, generator=generator)
    noisy, smooth = FixedCritics(epsilon), FixedCritics(torch.zeros(()))
    gradients = -noisy.gradients(actions)
    values, smooth_values = noisy.values(actions), smooth.values(actions)
    return Example(actions, values, smooth_values, gradients, angle(gradients))
