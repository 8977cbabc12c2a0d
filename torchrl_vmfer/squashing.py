"""The squashing a = m + h tanh(u) of actions to their bounds, and its derivative."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from tensordict.nn import ProbabilisticTensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.modules import TanhDelta, TanhNormal

Directions: TypeAlias = Literal["action", "pre_tanh"]
"""The variable whose gradients give the directions: the action, or the pre-tanh action."""

# TorchRL's TanhNormal keeps |tanh(u)| at a few multiples of eps below 1. Closer to a bound, the
# derivative is a rounding error.
_SATURATED = 32


class Squashing(nn.Module):
    """The squashing a = m + h tanh(u) to bounds m - h and m + h. Its state is empty.

    Examples:
        >>> squashing = Squashing(torch.tensor([-2.0]), torch.tensor([2.0]))
        >>> squashing.slope(torch.tensor([0.0, 1.0, 2.0]))
        tensor([2.0000, 1.5000, 0.0000])
    """

    middle: Tensor
    half_width: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        if not ((low < high) & low.isfinite() & high.isfinite()).all():
            raise ValueError(
                "directions='pre_tanh' requires actions that are squashed between finite bounds, "
                f"got {low.tolist()} and {high.tolist()}: pass the bounds, or use "
                "directions='action'."
            )
        # Not persistent: the state of a loss is that of TorchRL's.
        self.register_buffer("middle", (low + high) / 2, persistent=False)
        self.register_buffer("half_width", (high - low) / 2, persistent=False)

    def slope(self, action: Tensor) -> Tensor:
        """The derivative ∂a/∂u = h (1 - tanh²(u)) at actions ``[*, A]``; zero at the bounds."""
        action = action.float() if action.dtype.itemsize < 4 else action
        squashed = (action - self.middle) / self.half_width
        slope = 1 - squashed.square()
        return self.half_width * slope.where(slope > _SATURATED * torch.finfo(slope.dtype).eps, 0)


def make_squashing(loss: Any, action_spec: TensorSpec | None) -> Squashing:
    """Makes the squashing of a loss's policy.

    The bounds are those of the loss (TD3), of the policy's ``TanhNormal``, or of the action spec.
    """
    if hasattr(loss, "min_action"):
        return Squashing(loss.min_action.reshape(-1), loss.max_action.reshape(-1))
    for part in reversed(list(loss.actor_network.modules())):
        if isinstance(part, ProbabilisticTensorDictModule):
            kind, options = part.distribution_class, part.distribution_kwargs
            if isinstance(kind, type) and issubclass(kind, (TanhNormal, TanhDelta)):
                bounds = (options.get("low", -1.0), options.get("high", 1.0))
                low, high = (torch.as_tensor(bound).float().reshape(-1) for bound in bounds)
                return Squashing(low, high)
    spec = getattr(loss.actor_network, "spec", None) if action_spec is None else action_spec
    if isinstance(spec, Composite) and loss.tensor_keys.action in spec.keys(True):
        spec = spec[loss.tensor_keys.action]
    leaves: list[Any] = [spec]
    if isinstance(spec, Composite):  # in the order of the gradient's components
        keys = ((key,) if isinstance(key, str) else key for key in spec.keys(True, True))
        leaves = [leaf for key in sorted(keys) if (leaf := spec[key]).dtype.is_floating_point]
    if not leaves or not all(isinstance(leaf, Bounded) for leaf in leaves):
        found = "missing" if spec is None else f"of the type {type(spec).__name__}"
        raise ValueError(
            "directions='pre_tanh' requires the bounds of the action, but the policy of "
            f"{type(loss).__name__} is not a TanhNormal, and its action spec is {found}: pass "
            "action_spec= with bounds, or use directions='action'."
        )
    low, high = (
        torch.cat([getattr(leaf.space, name).reshape(-1) for leaf in leaves])
        for name in ("low", "high")
    )
    return Squashing(low, high)
