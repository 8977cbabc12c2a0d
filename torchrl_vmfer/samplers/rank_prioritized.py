"""Rank-based prioritized experience replay, for the critics."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer import arguments
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import RankDistribution


class RankPrioritizedSampler(BaseSampler):
    """A prioritized sampler based on the rank of the priority (Schaul et al. 2016, variant 2).

    P(j) ∝ (1 / rank(j))^alpha, where the highest priority has rank 1. Equal priorities share the
    probability of their ranks evenly. New transitions get the highest priority so far, which
    starts at 1. Batches contain the importance weights
    ``"priority_weight"`` = (P_min / P(j))^beta in (0, 1], which TorchRL's losses apply
    automatically.

    A saved state holds ``alpha`` and ``beta``. Loading restores ``beta``, which may change during
    training. Loading a state with a different ``alpha`` raises an error.

    Args:
        alpha: the exponent of the rank; 0 is uniform sampling.
        beta: the exponent of the importance weights; 1 fully corrects the bias. May be changed
            during training.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100),
        ...     sampler=RankPrioritizedSampler(alpha=1.0, beta=1.0),
        ...     batch_size=8,
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(3, 2)}, [3]))
        >>> buffer.update_priority(index, torch.tensor([0.1, 7.0, 0.3]))
        >>> buffer.sampler.probabilities()
        tensor([0.1818, 0.5455, 0.2727], dtype=torch.float64)
        >>> buffer.sample()["priority_weight"].shape
        torch.Size([8])
    """

    signal = "td_error"
    records_updates = False
    settings = ("alpha",)
    _numbers = ("beta", "max_priority")
    _first_maximum = 1.0

    def __init__(
        self,
        alpha: float = arguments.RANK_ALPHA.default,
        beta: float = arguments.RANK_BETA.default,
    ) -> None:
        arguments.RANK_ALPHA.check("alpha", alpha)
        self.alpha, self.beta = float(alpha), beta
        super().__init__(RankDistribution(self.alpha))

    @property
    def beta(self) -> float:
        """The exponent of the importance weights."""
        return self._weight_exponent

    @beta.setter
    def beta(self, value: float) -> None:
        arguments.RANK_BETA.check("beta", value)
        self._weight_exponent = float(value)

    @property
    def default_priority(self) -> float:
        """The priority of a newly written slot: the highest one so far, and at least 1."""
        return self.max_priority

    def _draw(self, storage: Storage, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        ranks = self._distribution
        slots, *ties = ranks.draw_with_ties(self._priorities.array, count, self.generator)
        weight = (ranks.ratios(*ties) ** self.beta).astype(np.float32)
        return torch.from_numpy(slots), {"priority_weight": torch.from_numpy(weight)}
