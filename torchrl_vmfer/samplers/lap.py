"""The sampler of loss-adjusted prioritized replay, for the critics."""

from __future__ import annotations

from torchrl_vmfer.samplers.td_error import TDErrorSampler

__all__ = ["LAPSampler"]


class LAPSampler(TDErrorSampler):
    """A sampler for critics with the Huber loss: loss-adjusted prioritized replay (LAP).

    P(j) ∝ max(|δ_j|, floor)^exponent, where δ_j is the last TD error that was stored for slot j
    with ``update_priority(index, td_error.abs())``. With the Huber loss
    (``loss_function="smooth_l1"``), whose threshold is ``floor=1``, large errors are drawn more
    often and have bounded gradients, and small errors are drawn uniformly. There are no importance
    weights: the combination needs no correction (Fujimoto et al., "An Equivalence between Loss
    Functions and Non-Uniform Sampling in Experience Replay", NeurIPS 2020,
    https://arxiv.org/abs/2007.06049).

    A new transition gets the largest TD error so far, and at least ``floor``.

    Args:
        exponent: how fast the probability increases with the TD error, from 0 (uniform) to 7.
        floor: smaller TD errors count as this number: the threshold of the Huber loss.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=LAPSampler(exponent=1.0)
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(3, 2)}, [3]))
        >>> buffer.update_priority(index, torch.tensor([0.5, 1.0, 3.0]))
        >>> buffer.sampler.probabilities()
        tensor([0.2000, 0.2000, 0.6000], dtype=torch.float64)
    """

    _sign = 1
