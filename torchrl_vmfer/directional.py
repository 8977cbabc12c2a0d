"""Statistics of directions under the von Mises-Fisher distribution.

All functions are pure functions on tensors. A set of ``N`` directions is a tensor
``[N, *batch, p]`` of vectors in ``p`` dimensions. Equation numbers refer to the vMFER paper
(Zhu et al., IJCAI 2024).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

MAX_FACTOR = math.e
"""The largest sampling factor: exp(R μᵀx) with R ≤ 1 and μᵀx ≤ 1."""


def directions(gradients: Tensor) -> Tensor:
    """Computes the unit vectors x_i = g_i / ‖g_i‖ of gradients g_i.

    A zero or non-finite gradient has no direction and becomes the zero vector: it
    contributes nothing to the mean, and everything computed from it stays finite.

    Args:
        gradients: a tensor ``[*, p]``.

    Examples:
        >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if not (isinstance(gradients, Tensor) and gradients.is_floating_point()):
        got = gradients.dtype if isinstance(gradients, Tensor) else type(gradients).__name__
        raise TypeError(f"Gradients must be a tensor of floating-point numbers, got {got}.")
    # Dividing by the largest entry first prevents overflow and underflow of the squares. If it is
    # 0, infinite or NaN, all entries become NaN.
    scaled = gradients / torch.linalg.vector_norm(gradients, math.inf, dim=-1, keepdim=True)
    return (scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)).nan_to_num(nan=0.0)


def _mean(gradients: Tensor) -> Tensor:
    return _critics(directions(gradients)).mean(0)


def _critics(x: Tensor) -> Tensor:
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"Expected [N, *batch, p] with at least one critic, got {list(x.shape)}.")
    return x


def resultant_length(gradients: Tensor) -> Tensor:
    """Computes R = ‖mean x_i‖ (Eq. 2): 1 if all directions agree, 0 if they cancel.

    Args:
        gradients: a tensor ``[N, *batch, p]``; only the directions count.

    Returns:
        a tensor ``[*batch]`` in [0, 1].

    Examples:
        >>> resultant_length(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        tensor(0.7071)
    """
    return torch.linalg.vector_norm(_mean(gradients), dim=-1).clamp(max=1.0)


def mean_direction(gradients: Tensor) -> Tensor:
    """Computes μ = mean x_i / R (Eq. 2), or zero if the directions cancel.

    Args:
        gradients: a tensor ``[N, *batch, p]``; only the directions count.

    Returns:
        a tensor ``[*batch, p]`` of unit (or zero) vectors.

    Examples:
        >>> mean_direction(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        tensor([0.7071, 0.7071])
    """
    return directions(_mean(gradients))


def concentration(resultant_length: Tensor, dim: int) -> Tensor:
    """Computes Banerjee's estimate κ = R (p - R²) / (1 - R²) of the concentration (Eq. 3).

    The estimate increases strictly with R. For p > 1 it has a pole at R = 1, where the function
    returns the largest value that the data type can distinguish from the pole.

    Args:
        resultant_length: R in [0, 1], of any shape.
        dim: the dimension p of the directions.

    Examples:
        >>> concentration(torch.tensor([0.0, 0.5, 0.9]), dim=3)
        tensor([ 0.0000,  1.8333, 10.3737])
    """
    if dim < 1:
        raise ValueError(f"dim, the dimension of the directions, must be at least 1, got {dim}.")
    # (p - R²)/(1 - R²) = 1 + (p - 1)/(1 - R²) has no 0/0 for p = 1, where κ = R.
    gap = ((1 - resultant_length) * (1 + resultant_length)).clamp(
        min=torch.finfo(resultant_length.dtype).eps
    )
    return resultant_length * (1 + (dim - 1) / gap)


Used = int | Tensor | Literal["first", "mean"]
"""The critic e whose gradient moves the actor: its index, one index for each transition
``[*batch]``, ``"first"``, or ``"mean"`` for the mean of all gradients. A floating-point tensor
``[*batch, p]`` is the gradient g_e itself."""


def sampling_factor(gradients: Tensor, used: Used) -> Tensor:
    """Computes the sampling factor p = exp(R μᵀx_e) = exp(x̄ᵀx_e) of transitions (Eq. 8).

    For two gradients at an angle Θ, the factor is exp((1 + cos Θ)/2), between 1 and e.

    Args:
        gradients: a tensor ``[N, *batch, p]``, one gradient per critic; only the
            directions matter, except with ``used="mean"``.
        used: the critic e whose gradient moves the actor: 0 or ``"first"`` for TD3, a tensor
            ``[*batch]`` of argmin_i Q_i for SAC, ``"mean"`` for an actor that maximizes the
            mean of all critics, where x_e is the direction of the mean gradient.

    Returns:
        a tensor ``[*batch]`` in [1/e, e].

    Examples:
        >>> sampling_factor(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), used=0)
        tensor(1.6487)
        >>> sampling_factor(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), used="mean")
        tensor(1.8010)
    """
    return factor_and_length(gradients, used)[0]


def factor_and_length(gradients: Tensor, used: Used) -> tuple[Tensor, Tensor]:
    """Computes both the :func:`sampling_factor` and the :func:`resultant_length`.

    Args:
        gradients: a tensor ``[N, *batch, p]``, one gradient per critic.
        used: the critic e, as in :func:`sampling_factor`.
    """
    x = _critics(directions(gradients))
    mean = x.mean(0)
    factor = (mean * _used_direction(gradients, x, used)).sum(-1).clamp(max=1.0).exp()
    return factor, torch.linalg.vector_norm(mean, dim=-1).clamp(max=1.0)


def batch_weights(factor: Tensor, power: float) -> Tensor:
    """Computes the weights p^power / mean(p^power) of the transitions of a batch.

    Args:
        factor: sampling factors, of any shape.
        power: the exponent. A large one does not overflow.

    Examples:
        >>> batch_weights(torch.tensor([1.0, 2.0]), power=1)
        tensor([0.6667, 1.3333])
    """
    weights = torch.softmax(power * factor.log().flatten(), 0) * factor.numel()
    return weights.view_as(factor)


def used_gradient(gradients: Tensor, used: Used) -> Tensor:
    """Returns the gradient g_e that moves the actor, ``[*batch, p]``.

    Args:
        gradients: a tensor ``[N, *batch, p]``, one gradient per critic.
        used: the critic e, as in :func:`sampling_factor`.

    Examples:
        >>> used_gradient(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), used="mean")
        tensor([0.5000, 2.5000])
    """
    if isinstance(used, Tensor):
        return used if used.is_floating_point() else _of_critic(gradients, used)
    return mean_gradient(gradients) if used == "mean" else _of_critic(gradients, used)


def mean_gradient(gradients: Tensor) -> Tensor:
    """Computes the mean of gradients ``[N, *batch, p]``. Non-finite ones count as zero."""
    usable = gradients.isfinite().all(-1, keepdim=True)
    # Dividing before the sum prevents overflow.
    return (torch.where(usable, gradients, 0) / len(gradients)).sum(0)


def _used_direction(gradients: Tensor, x: Tensor, used: Used) -> Tensor:
    """The direction x_e ``[*batch, p]``, given all gradients and directions."""
    is_gradient = used.is_floating_point() if isinstance(used, Tensor) else used == "mean"
    return directions(used_gradient(gradients, used)) if is_gradient else _of_critic(x, used)


def _of_critic(values: Tensor, used: Used) -> Tensor:
    """The entries ``[*batch, p]`` of critic e in ``[N, *batch, p]``."""
    if isinstance(used, Tensor):
        return values.gather(0, used[None, ..., None].expand(1, *values.shape[1:])).squeeze(0)
    if used == "first":
        return values[0]
    if isinstance(used, str):
        raise ValueError(f"used must be the index of a critic, 'first' or 'mean', got {used!r}.")
    if not 0 <= used < len(values):
        raise IndexError(f"used={used} is not the index of one of the {len(values)} critics.")
    return values[used]
