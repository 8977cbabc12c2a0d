"""Batch renormalization that can be evaluated as an ensemble."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchRenorm(nn.Module):
    """Batch renormalization of the last dimension (Ioffe, 2017), as CrossQ uses it.

    In training mode, a batch is normalized by its own mean and variance and, after the warm-up,
    corrected toward the running statistics. In evaluation mode, it is normalized by the running
    statistics.

    It can be evaluated for stacked parameters and buffers with ``torch.vmap``, which also updates
    the stacked running statistics. (TorchRL's ``BatchRenorm1d`` multiplies the correction by
    ``num_batches_tracked // warmup_steps``, which keeps growing: after three times the warm-up, the
    correction is three times too large.)

    Args:
        features: the size of the last dimension.
        warmup: the number of batches before the correction starts.

    Examples:
        >>> layer = BatchRenorm(2, warmup=10)
        >>> layer(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
        tensor([[-0.9995, -0.9999],
                [ 0.9995,  0.9999]], grad_fn=<AddBackward0>)
        >>> layer.running_mean
        tensor([0.0100, 0.0300])
    """

    momentum = 0.01  # the weight of a batch in the running statistics
    eps = 1e-3  # added to the variance
    max_scale = 3.0  # the scale of the correction is clipped to this value and its inverse
    max_shift = 5.0  # its shift is clipped to ± this value
    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    def __init__(self, features: int, *, warmup: int = 100_000) -> None:
        super().__init__()
        self.warmup = warmup
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalizes ``[*batch, features]``."""
        if not self.training:
            return self.weight * (inputs - self.running_mean) / self._running_std() + self.bias
        if inputs.ndim < 2:
            raise ValueError(
                "BatchRenorm in training mode normalizes a batch [*batch, features], got an input "
                f"of shape {list(inputs.shape)}: add a batch dimension, or call eval()."
            )
        rows = inputs.flatten(0, -2)
        mean, variance = rows.mean(0), rows.var(0, unbiased=False)
        deviation = (variance + self.eps).sqrt()
        with torch.no_grad():
            is_warm = self.batches >= self.warmup
            scale = (deviation / self._running_std()).clamp(1 / self.max_scale, self.max_scale)
            shift = (mean - self.running_mean) / self._running_std()
            shift = shift.clamp(-self.max_shift, self.max_shift)
            # Not `if`: the batch counts of an ensemble are one tensor.
            scale, shift = torch.where(is_warm, scale, 1), torch.where(is_warm, shift, 0)
            self.running_mean += self.momentum * (mean - self.running_mean)
            self.running_var += self.momentum * (variance - self.running_var)
            self.batches += 1
        return self.weight * ((inputs - mean) / deviation * scale + shift) + self.bias

    def _running_std(self) -> Tensor:
        return (self.running_var + self.eps).sqrt()
