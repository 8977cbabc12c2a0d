"""Three ways of choosing the transitions that an actor is updated with.

All transitions have the same state and differ by the noise on their action. A choice is a mask
``[seed, batch]``, based on the gradients ``[critic, seed, batch, 2]`` of the losses l_i = -Q_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_vmfer import directional
from vmfer_recipes.toy.agents import OPTIMAL_ACTION

__all__ = ["WAYS", "angle", "oracle", "uncertainty", "uniform"]

WAYS = ("uniform", "uncertainty", "oracle")


def uniform(gradients: Tensor) -> Tensor:
    """Selects all transitions."""
    return torch.ones(gradients.shape[1:-1], dtype=torch.bool)


def uncertainty(gradients: Tensor, low_uncertainty: float, largest_angle: float = 180.0) -> Tensor:
    """Selects the transitions on whose direction the critics agree best.

    Args:
        gradients: ∂l_i/∂a ``[critic, seed, batch, 2]``.
        low_uncertainty: the fraction of each batch that is used.
        largest_angle: transitions with a larger angle are left out in any case, in degrees.
    """
    # The factor of two critics depends on the angle only, and no acos blurs small angles.
    factor = directional.sampling_factor(gradients, used=0)
    count = max(1, round(low_uncertainty * factor.shape[-1]))
    best = factor.topk(count, dim=-1).indices
    used = torch.zeros_like(factor, dtype=torch.bool).scatter(-1, best, True)
    return used & (angle(gradients) <= largest_angle)


def oracle(gradients: Tensor, action: Tensor) -> Tensor:
    """Selects transitions whose first gradient moves the action ``[seed, 2]`` toward a*."""
    wanted = action.new_tensor(OPTIMAL_ACTION) - action
    return (-gradients[0] * wanted[:, None]).sum(-1) > 0


def angle(gradients: Tensor) -> Tensor:
    """The angle in degrees between the gradients ``[2, *batch, 2]`` of two critics.

    Two directions at an angle Θ have a resultant of length cos(Θ/2).

    Examples:
        >>> angle(torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 5.0], [-3.0, 0.0]]]))
        tensor([ 90., 180.])
    """
    return torch.rad2deg(2 * directional.resultant_length(gradients).acos())
