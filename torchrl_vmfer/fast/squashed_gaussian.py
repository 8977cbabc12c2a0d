"""TorchRL's ``TanhNormal`` as functions of tensors, with derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import TanhNormal

from torchrl_vmfer.fast.kernels import Kernels, are_plain
from torchrl_vmfer.fast.plain_network import NotPlainError, slope_of_loc_and_scale
from torchrl_vmfer.networks import LocAndScale

__all__ = ["CompiledSquashedGaussian", "SquashedGaussian"]


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

    def noise(self, outputs: Any) -> Tensor:
        """Standard normal noise ``[B, A]`` for :meth:`draw`."""
        return torch.randn_like(outputs[0])

    def draw(self, outputs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(u) at u = mean + deviation · noise, and the log-densities ``[B]`` of the actions.

        Args:
            outputs: the outputs of the policy's network: mean and deviation, both ``[B, A]``.
            noise: the noise, ``[B, A]``.
        """
        mean, deviation = outputs
        pre_tanh = torch.addcmul(mean, deviation, noise)
        squashed = pre_tanh.tanh()
        # log(1 - tanh²(u)) = 2 (log 2 - u - softplus(-2u)) avoids cancellation.
        correction = functional.softplus(pre_tanh.mul_(-2)).mul_(2).sub_(pre_tanh)
        density = correction.sub_(deviation.log()).addcmul_(noise, noise, value=-0.5)
        constant = math.log(4) + 0.5 * math.log(2 * math.pi)
        return squashed, self._stretched(density.sum(-1) - mean.shape[-1] * constant, mean)

    def _stretched(self, log_prob: Tensor, like: Tensor) -> Tensor:
        """The log-densities of actions m + h tanh(u), from those of tanh(u)."""
        if self._is_unit:
            return log_prob
        return log_prob - self._half.to(like).expand(like.shape[-1]).log().sum()

    def stretch(self, squashed: Tensor) -> Tensor:
        """The action m + h tanh(u)."""
        if self._is_unit:
            return squashed
        return torch.addcmul(self._middle.to(squashed), self._half.to(squashed), squashed)

    def actor_loss(
        self,
        outputs: Any,
        noise: Tensor,
        squashed: Tensor,
        log_prob: Tensor,
        value: Tensor,
        gradient: Tensor,
        alpha: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Computes Σ w (α log π - Q) and its gradients with respect to ``outputs``.

        Args:
            outputs: as in :meth:`draw`, as are the noise and its two results.
            noise: the noise.
            squashed: tanh(u).
            log_prob: the log-densities log π, ``[B]``.
            value: the values Q of the actions, ``[B]``.
            gradient: their gradients with respect to the actions, ``[B, A]``.
            alpha: the temperature α.
            weights: the weights w of the transitions, ``[B]`` or ``[]``.
        """
        _, deviation = outputs
        of_rows = weights.unsqueeze(-1)
        of_action, of_density = -of_rows * gradient, alpha * of_rows
        if not self._is_unit:
            of_action = of_action * self._half.to(of_action)
        # ∂a/∂u = h (1 - tanh²), ∂log π/∂u = 2 tanh.
        of_mean = torch.addcmul(of_action, of_action, squashed.square(), value=-1)
        of_mean += 2 * of_density * squashed
        slopes = of_mean, of_mean * noise - of_density / deviation
        return ((alpha * log_prob - value) * weights).sum(), slopes


class CompiledSquashedGaussian(SquashedGaussian):
    """A :class:`SquashedGaussian` that calls the functions of ``squashed.c``.

    Its ``outputs`` are those of the layer before :class:`~torchrl_vmfer.networks.LocAndScale`:
    means and logarithms of deviations, in one tensor ``[B, 2A]``. The gradients refer to it.

    Args:
        head: as in :class:`SquashedGaussian`.
        kernels: the compiled functions.
    """

    def __init__(self, head: Any, kernels: Kernels) -> None:
        super().__init__(head)
        self._kernels = kernels
        self._split = LocAndScale()

    def noise(self, outputs: Tensor) -> Tensor:
        """As in :class:`SquashedGaussian`."""
        return torch.randn_like(outputs[..., : outputs.shape[-1] // 2])

    def draw(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As in :class:`SquashedGaussian`."""
        is_supported = outputs.ndim == 2 and outputs.shape[1] == 2 * noise.shape[1]
        if not (is_supported and are_plain(outputs, noise)):
            return super().draw(self._split(outputs), noise)
        outputs, noise = outputs.contiguous(), noise.contiguous()
        squashed, log_prob = torch.empty_like(noise), noise.new_empty(len(noise))
        is_computed = self._kernels.squashed_draw(
            *noise.shape,
            outputs.data_ptr(),
            *LocAndScale.bounds,
            *(tensor.data_ptr() for tensor in (noise, squashed, log_prob)),
        )
        if not is_computed:
            return super().draw(self._split(outputs), noise)
        return squashed, self._stretched(log_prob, noise)

    def actor_loss(
        self,
        outputs: Tensor,
        noise: Tensor,
        squashed: Tensor,
        log_prob: Tensor,
        value: Tensor,
        gradient: Tensor,
        alpha: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As in :class:`SquashedGaussian`."""
        given: tuple[Tensor, ...] = (outputs, noise, squashed, log_prob, value, gradient)
        if outputs.ndim == 2 and are_plain(*given, weights):
            given = tuple(tensor.contiguous() for tensor in given)
            weights = weights.contiguous()
            half = None if self._is_unit else self._half.to(noise).expand(noise.shape[-1])
            half = None if half is None else half.contiguous()
            slopes, loss = torch.empty_like(outputs), outputs.new_empty(())
            is_computed = self._kernels.squashed_slopes(
                *noise.shape,
                given[0].data_ptr(),
                *LocAndScale.bounds,
                *(tensor.data_ptr() for tensor in given[1:]),
                None if half is None else half.data_ptr(),
                float(alpha),
                weights.data_ptr(),
                weights.ndim,
                slopes.data_ptr(),
                loss.data_ptr(),
            )
            if is_computed:
                return loss, (slopes,)
        mean, deviation = self._split(outputs)
        loss, of_both = super().actor_loss(
            (mean, deviation), noise, squashed, log_prob, value, gradient, alpha, weights
        )
        return loss, (slope_of_loc_and_scale(outputs, deviation, *of_both),)


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
