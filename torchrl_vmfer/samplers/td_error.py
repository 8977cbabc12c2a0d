"""Samplers by TD errors: LAP for the critics, and the inverse for the actor."""

from __future__ import annotations

from typing import ClassVar

from torchrl_vmfer import arguments
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import PowerDistribution


class _TDErrorSampler(BaseSampler):
    """A sampler with P ∝ max(|δ|, floor)^(sign · exponent), where δ is the stored TD error."""

    signal = "td_error"
    _sign: ClassVar[int]
    settings = ("exponent", "floor")
    _rule = "a TD error is a finite number of at least 0: pass |TD error|."

    def __init__(
        self,
        exponent: float = arguments.EXPONENT.default,
        floor: float = arguments.FLOOR.default,
    ) -> None:
        arguments.EXPONENT.check("exponent", exponent)
        arguments.FLOOR.check("floor", floor)
        self.exponent, self.floor = float(exponent), float(floor)
        super().__init__(PowerDistribution(self._sign * self.exponent))

    @property
    def default_priority(self) -> float:
        """The TD error of a newly written slot: the largest one so far, and at least ``floor``."""
        return max(self.max_priority, self.floor)


class LAPSampler(_TDErrorSampler):
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


class InverseTDSampler(_TDErrorSampler):
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
