"""The sampler for the actor that prefers transitions with small TD errors."""

from __future__ import annotations

from torchrl_vmfer.samplers.td_error import TDErrorSampler

__all__ = ["InverseTDSampler"]


class InverseTDSampler(TDErrorSampler):
    """A sampler for the actor that prefers transitions with small TD errors.

    P(j) ∝ max(d_j, floor)^-exponent, where d_j is the last absolute TD error that was stored for
    slot j with ``update_priority(index, td_error.abs())``. This is how the actor of LA3P draws its
    prioritized transitions: a policy gradient is unreliable where the critic's error is large
    (Saglam et al., "Actor Prioritized Experience Replay", JAIR 2023,
    https://arxiv.org/abs/2209.00532). In LA3P, half of the batch is uniform; for such a
    batch, use :class:`~torchrl_vmfer.MixedSampler`.

    A new transition gets the largest TD error so far, and at least ``floor``: it is not preferred
    until the critics have been trained on it. A sampler that is never given a TD error draws
    uniformly. It warns once, after 100 batches.

    Args:
        exponent: how fast the probability decreases with the TD error, from 0 (uniform) to 7.
        floor: smaller TD errors count as this number.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=InverseTDSampler(exponent=1.0)
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(3, 2)}, [3]))
        >>> buffer.update_priority(index, torch.tensor([0.5, 1.0, 2.0]))
        >>> buffer.sampler.probabilities()
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    _sign = -1
