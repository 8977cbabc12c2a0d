"""The sampler for the actor that prefers transitions with large action gradients."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from torchrl_vmfer import arguments
from torchrl_vmfer.samplers.base import NEVER, BaseSampler
from torchrl_vmfer.samplers.distributions import PowerDistribution


class GradientNormSampler(BaseSampler):
    """A sampler for the actor that prefers transitions with large action gradients.

    P(j) ∝ norm_j^power, where norm_j is the last norm that was stored for slot j with
    ``update_priority(index, norm)``: the norm of the action gradient of the value that the actor
    maximizes. Sampling in proportion to gradient norms minimizes the variance of an
    importance-weighted gradient estimate; the norm at the output of the network is a cheap proxy
    (Katharopoulos and Fleuret, "Not All Samples Are Created Equal: Deep Learning with Importance
    Sampling", ICML 2018, https://arxiv.org/abs/1803.00942). This sampler returns no importance
    weights: as in vMFER, the actor's distribution is changed on purpose.

    A slot with norm 0 has P = 0. If all norms are 0, P is uniform. A new transition gets the
    largest norm so far. Until the first positive norm, all slots without a norm are equal; they
    then get the largest norm of that update. A sampler that is never given a norm draws uniformly.
    It warns once, after 100 batches.

    Args:
        power: the exponent of the norm, from 0 (uniform) to 7.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=GradientNormSampler()
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(4, 2)}, [4]))
        >>> buffer.update_priority(index[:3], torch.tensor([0.0, 0.02, 0.04]))
        >>> buffer.sampler.probabilities()
        tensor([0.0000, 0.2000, 0.4000, 0.4000], dtype=torch.float64)
    """

    signal = "gradient_norm"
    settings = ("power",)
    _rule = "a gradient norm is a finite number of at least 0: check the gradients."

    def __init__(self, power: float = arguments.NORM_POWER.default) -> None:
        arguments.NORM_POWER.check("power", power)
        self.power = float(power)
        super().__init__(PowerDistribution(self.power))

    @property
    def default_priority(self) -> float:
        """The norm of a newly written slot: the largest one so far, or 1 before the first one."""
        return self.max_priority or 1.0

    def _stores(self, slots: np.ndarray, given: Tensor) -> bool:
        return self.max_priority > 0 and super()._stores(slots, given)

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        is_first = self.max_priority == 0
        priorities = super()._scored(slots, priorities)
        if is_first and self.max_priority:
            # The scale of norms was unknown: 1 could be much larger or smaller than all of them.
            (unscored,) = (self._last_update.array == NEVER).nonzero()
            self._write(unscored, np.float32(self.max_priority), NEVER)
        return priorities
