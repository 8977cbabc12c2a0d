"""The updates of TQC on plain networks, as batched matrix products."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer.fast.kernels import are_plain, load_kernels
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.sac import FastSAC
from torchrl_vmfer.fast.td_loss import td_target

__all__ = ["FastTQC", "quantile_huber"]


class FastTQC(FastSAC):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFTQCLoss`."""

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss, and the TD errors."""
        targets = td_target(self._next_quantiles(tensordict).mT, *self._outcome(tensordict)).mT
        quantiles, pull_back = self._predicted(tensordict)
        distance, slope, error = quantile_huber(quantiles, targets)
        weights = self._weights(tensordict, distance)
        critic_loss = with_known_gradients(
            (distance * weights).sum(),
            self._trained_critics,
            pull_back,
            slope * weights.unsqueeze(-1),
        )
        return critic_loss, {"td_error": error.amax(0)}

    def _next_quantiles(self, tensordict: TensorDictBase) -> Tensor:
        """The lowest quantiles ``[B, T]`` of all target critics together."""
        values, entropy = self._next_values(tensordict, self._target_critics)
        quantiles = values - entropy.unsqueeze(-1)
        dropped, found = self._loss.top_quantiles_to_drop_per_net, quantiles.shape[-1]
        if dropped >= found:
            raise ValueError(
                f"top_quantiles_to_drop_per_net={dropped} leaves none of the {found} quantiles of "
                "each critic: choose a smaller number."
            )
        kept = len(quantiles) * (found - dropped)
        return quantiles.movedim(0, 1).flatten(1).sort().values[:, :kept]


def quantile_huber(quantiles: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the quantile Huber loss of TQC.

    Args:
        quantiles: the predicted quantiles ``[N, B, K]``.
        targets: their targets ``[B, T]``.

    Returns:
        the loss ``[N, B]``, averaged over all pairs; its gradient with respect to the quantiles
        ``[N, B, K]``; and the mean absolute difference of all pairs ``[N, B]``.
    """
    kernels = load_kernels()
    if kernels is None or not are_plain(quantiles, targets):
        return _quantile_huber_by_torch(quantiles, targets)
    quantiles, targets = quantiles.contiguous(), targets.contiguous()
    losses, errors = quantiles.new_empty(2, *quantiles.shape[:-1])
    slopes = torch.empty_like(quantiles)
    is_computed = kernels.quantile_huber(
        *quantiles.shape,
        targets.shape[-1],
        *(tensor.data_ptr() for tensor in (quantiles, targets, losses, slopes, errors)),
    )
    return (losses, slopes, errors) if is_computed else _quantile_huber_by_torch(quantiles, targets)


def _quantile_huber_by_torch(quantiles: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, one critic at a time: the pairs of one critic fit in the cache.

    For a difference d and c = d clipped to [-1, 1], the Huber loss is c (d - c/2), and the weight
    of a quantile fraction τ is 1/2 + (τ - 1/2) sign(d), so that τ is needed only after summing over
    the targets.
    """
    number = quantiles.shape[-1]
    tilt = (torch.arange(number, device=quantiles.device).to(quantiles) + 0.5) / number - 0.5
    found = []
    for of_critic in quantiles:
        difference = targets.unsqueeze(-2) - of_critic.unsqueeze(-1)
        clipped = difference.clamp(-1, 1)
        error = difference.abs().mean(-1)
        slope = 0.5 * clipped.mean(-1) + tilt * clipped.abs().mean(-1)
        rest = difference.sub_(clipped, alpha=0.5)
        loss = 0.5 * (clipped * rest).mean(-1) + tilt * (clipped.abs_() * rest).mean(-1)
        found.append((loss.mean(-1), slope / -number, error.mean(-1)))
    losses, slopes, errors = (torch.stack(parts) for parts in zip(*found, strict=True))
    return losses, slopes, errors
