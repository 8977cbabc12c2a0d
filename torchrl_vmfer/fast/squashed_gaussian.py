"""TorchRL's ``TanhNormal`` as functions of tensors, with derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import TanhNormal

from torchrl_vmfer.fast.plain_network import NotPlainError

__all__ = ["SquashedGaussian"]


class SquashedGaussian:
    """TorchRL's ``TanhNormal`` without the distribution objects: a = m + h tanh(u).

    Args:
        head: the last module of a policy, which builds the distribution.

    Raises:
        NotPlainError: if the distribution is not a ``TanhNormal``.
    """

    def __init__(self, head: Any) -> None:
        options: dict[str, Any] = {"low": -1.0, "high": 1.0, "upscale": 5.0, "tanh_loc": False}
        options |= {"event_dims": None, "safe_tanh": True}
        given = head.distribution_kwargs
        if head.distribution_class is not TanhNormal or not given.keys() <= options.keys():
            raise NotPlainError("the policy is not a TanhNormal")
        if head.num_samples is not None or given.get("event_dims") not in (None, 1):
            raise NotPlainError("the policy draws several actions, or matrices of them")
        options |= given
        low, high = (torch.as_tensor(options[name]) for name in ("low", "high"))
        self._is_unit = bool((low == -1).all() and (high == 1).all())
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._upscale = options["upscale"] if options["tanh_loc"] else None

    def bounded_mean(self) -> nn.Module | None:
        """The module between network and distribution if ``tanh_loc=True``, else ``None``."""
        if self._upscale is None:
            return None
        return _BoundedMean(self._upscale, None if self._is_unit else self._middle)

    def __call__(self, mean: Tensor, deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(u) at u = mean + deviation · noise, and the log-densities ``[B]`` of the actions."""
        pre_tanh = torch.addcmul(mean, deviation, noise)
        squashed = pre_tanh.tanh()
        # log(1 - tanh²(u)) = 2 (log 2 - u - softplus(-2u)) avoids cancellation.
        correction = functional.softplus(pre_tanh.mul_(-2)).mul_(2).sub_(pre_tanh)
        density = correction.sub_(deviation.log()).addcmul_(noise, noise, value=-0.5)
        constant = math.log(4) + 0.5 * math.log(2 * math.pi)
        log_prob = density.sum(-1) - mean.shape[-1] * constant
        if not self._is_unit:
            log_prob -= self._half.to(mean).expand(mean.shape[-1]).log().sum()
        return squashed, log_prob

    def stretch(self, squashed: Tensor) -> Tensor:
        """The action m + h tanh(u)."""
        if self._is_unit:
            return squashed
        return torch.addcmul(self._middle.to(squashed), self._half.to(squashed), squashed)

    def slopes(
        self,
        of_action: Tensor,
        of_density: Tensor,
        squashed: Tensor,
        deviation: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The gradients of mean and deviation: ∂a/∂u = h (1 - tanh²), ∂log π/∂u = 2 tanh."""
        if not self._is_unit:
            of_action = of_action * self._half.to(of_action)
        of_mean = torch.addcmul(of_action, of_action, squashed.square(), value=-1)
        of_mean += 2 * of_density * squashed
        return of_mean, of_mean * noise - of_density / deviation


class _BoundedMean(nn.Module):
    """Limits the mean of a Gaussian to ``upscale`` around the middle of the bounds."""

    def __init__(self, upscale: float | Tensor, middle: Tensor | None) -> None:
        super().__init__()
        self.upscale, self.middle = upscale, middle

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The bounded mean and the deviation."""
        mean, deviation = inputs
        mean = (mean / self.upscale).tanh() * self.upscale
        return mean if self.middle is None else mean + self.middle.to(mean), deviation
