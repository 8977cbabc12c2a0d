"""Three ways of choosing the transitions that a policy is updated with.

All transitions share one state, so they differ by the clipped noise on their action. A choice is
a mask ``[seed, batch]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchrl_vmfer import directional
from vmfer_recipes.toy.environment import OPTIMAL_ACTION

__all__ = ["WAYS", "Candidates", "angle", "make_ways", "oracle", "uncertainty", "uniform"]

WAYS = ("uniform", "uncertainty", "oracle")


@dataclass(frozen=True)
class Candidates:
    """The transitions to choose from.

    Attributes:
        action: the policy's action π(s₀), without noise, ``[seed, 2]``.
        gradients: the gradients g_i of the losses l_i = -Q_i at the noisy actions,
            ``[critic, seed, batch, 2]``.
    """

    action: Tensor
    gradients: Tensor


def angle(gradients: Tensor) -> Tensor:
    """The angle in degrees between the gradients ``[2, *batch, 2]`` of two critics.

    Two directions at an angle Θ have a resultant of length cos(Θ/2).

    Examples:
        >>> angle(torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 5.0], [-3.0, 0.0]]]))
        tensor([ 90., 180.])
    """
    return torch.rad2deg(2 * directional.resultant_length(gradients).acos())


def uniform(candidates: Candidates) -> Tensor:
    """Selects all transitions."""
    return torch.ones(candidates.gradients.shape[1:-1], dtype=torch.bool)


def uncertainty(
    candidates: Candidates, *, low_uncertainty: float, largest_angle: float = 180.0
) -> Tensor:
    """Selects the transitions on whose direction the critics agree best.

    Args:
        candidates: the transitions to choose from.
        low_uncertainty: the fraction of each batch that is used.
        largest_angle: transitions with a larger angle are left out in any case, in degrees.
    """
    # The angle decides the factor of two critics, which has no acos to blur small angles.
    factor = directional.sampling_factor(candidates.gradients, used=0)
    count = max(1, round(low_uncertainty * factor.shape[-1]))
    best = factor.topk(count, dim=-1).indices
    used = torch.zeros_like(factor, dtype=torch.bool).scatter(-1, best, True)
    return used & (angle(candidates.gradients) <= largest_angle)


def oracle(candidates: Candidates) -> Tensor:
    """Selects transitions whose gradient (of the first critic) moves the action toward a*."""
    wanted = candidates.action.new_tensor(OPTIMAL_ACTION) - candidates.action
    return (-candidates.gradients[0] * wanted[:, None]).sum(-1) > 0


def make_ways(
    low_uncertainty: float, largest_angle: float
) -> dict[str, Callable[[Candidates], Tensor]]:
    """The three ways by name; for the arguments see :func:`uncertainty`."""
    chosen = partial(uncertainty, low_uncertainty=low_uncertainty, largest_angle=largest_angle)
    return dict(zip(WAYS, (uniform, chosen, oracle), strict=True))
