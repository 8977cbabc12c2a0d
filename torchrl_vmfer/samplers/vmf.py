"""The vMFER sampler, which prefers transitions on which the critics agree."""

from __future__ import annotations

import numpy as np

from torchrl_vmfer import arguments
from torchrl_vmfer.directional import MAX_FACTOR
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import (
    LARGEST_WEIGHT,
    Distribution,
    Generator,
    Mode,
    PowerDistribution,
    RankDistribution,
    RejectionDistribution,
    resampling,
    uniform,
)

_LEAST_FACTOR = float(np.finfo(np.float32).smallest_subnormal)


class VMFSampler(BaseSampler):
    """A sampler for the actor, based on the uncertainty of gradient directions.

    Each slot of the storage holds a sampling factor p_j = exp(R μᵀx_e), which
    :class:`~torchrl_vmfer.VMFTD3Loss`, :class:`~torchrl_vmfer.VMFSACLoss` and
    :class:`~torchrl_vmfer.VMFUncertainty` compute and ``update_priority(index, factor)`` stores.
    Draws are independent, with replacement, and follow the current factors exactly:

    - ``mode="uncertainty"``: P(j) = p_j / Σ p (Eq. 8). Since p_j ≤ e, the cost of drawing by
      rejection and of updates is independent of the buffer size. With ``power``,
      P(j) ∝ p_j^power.
    - ``mode="rank"``: P(j) ∝ 1/rank(j), where the highest factor has rank 1 (Eq. 9). Equal
      factors share the probability of their ranks evenly.

    ``pool_size`` implements the paper's "sub-sample". For each batch, ``pool_size`` slots are drawn
    uniformly with replacement, and the batch is drawn from them with the probabilities above,
    restricted to these slots. The draws of one batch share a pool and are not independent.

    A sampler that is never given a factor draws uniformly. It warns once, after 100 batches.

    The state is kept on the CPU, regardless of the storage's device. The sampler returns no
    importance weights, because the actor's distribution is changed on purpose.

    Args:
        mode: ``"uncertainty"`` or ``"rank"``.

    Keyword Args:
        power: the exponent of the factor in ``mode="uncertainty"``, from -100 to 100. 1 is the
            paper's method, 0 is uniform, a larger power prefers agreement more strongly, and a
            negative one prefers disagreement. Loading a state with another power raises an error.
        initial_factor: the factor of a newly written slot. The paper's value of 1 is the lowest
            that two critics can give, so that new transitions are not preferred.
        smoothing: the weight of the old factor in an update,
            p ← smoothing · p + (1 - smoothing) · p_new. 0.9 is the paper's running average for
            hindsight replay.
        pool_size: the number of candidates for each batch; 2048 and 65536 in the paper. ``None``
            draws from the whole buffer. Loading a state with another pool size raises an error.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=VMFSampler(), batch_size=8
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(4, 3)}, [4]))
        >>> buffer.update_priority(index, torch.tensor([1.0, 1.0, 1.0, 2.0]))
        >>> buffer.sampler.probabilities()
        tensor([0.2000, 0.2000, 0.2000, 0.4000], dtype=torch.float64)
        >>> buffer.sample()["index"].shape
        torch.Size([8])
    """

    signal = "factor"
    default_priority = arguments.INITIAL_FACTOR.default
    settings = ("power", "pool_size")
    _numbers = ()

    def __init__(
        self,
        mode: Mode = arguments.MODE.default,
        *,
        power: float = arguments.POWER.default,
        initial_factor: float = arguments.INITIAL_FACTOR.default,
        smoothing: float = arguments.SMOOTHING.default,
        pool_size: int | None = arguments.POOL_SIZE.default,
    ) -> None:
        arguments.MODE.check("mode", mode)
        arguments.POWER.check("power", power)
        arguments.INITIAL_FACTOR.check("initial_factor", initial_factor)
        arguments.SMOOTHING.check("smoothing", smoothing)
        if pool_size is not None:
            arguments.POOL_SIZE.check("pool_size", pool_size)
        if mode == "rank" and power != 1:
            raise ValueError(
                f"power must be 1 with mode='rank', got {power!r}: ranks do not depend on it. Use "
                "mode='uncertainty'."
            )
        # The smallest factor whose power, or the inverse of it, does not overflow.
        smallest = LARGEST_WEIGHT ** (-1 / abs(power)) if power else 0.0
        if initial_factor < smallest:
            raise ValueError(
                f"initial_factor must be at least {smallest:.3g} with power={power}, so that "
                f"p^power cannot overflow, got {initial_factor}."
            )
        self._range = (max(smallest, _LEAST_FACTOR), MAX_FACTOR)
        is_bounded = smallest > _LEAST_FACTOR
        bounds = f"[{smallest:.3g}, e] with power={power:g}" if is_bounded else "(0, e]"
        self._rule = f"a sampling factor exp(R μᵀx) lies in {bounds}: check its gradients."
        self.mode, self.power, self.pool_size = mode, float(power), pool_size
        self.initial_factor = self.default_priority = initial_factor
        self.smoothing = smoothing
        distribution: Distribution
        if pool_size is not None:
            distribution = PoolDistribution(pool_size, mode, self.power)
        elif mode == "rank":
            distribution = RankDistribution()
        elif 0 <= power <= 1:
            distribution = RejectionDistribution(self.power, MAX_FACTOR)
        else:
            distribution = PowerDistribution(self.power)
        super().__init__(distribution)


class PoolDistribution(Distribution):
    """For each batch, a uniform pool of slots, drawn with replacement, and resampling from it."""

    def __init__(self, size: int, mode: Mode, power: float) -> None:
        super().__init__()
        self._size = size
        self._members = resampling(mode, power)

    def draw(self, priorities: np.ndarray, count: int, generator: Generator) -> np.ndarray:
        """As in :class:`Distribution`."""
        slots = (uniform(self._size, generator) * len(priorities)).astype(np.int64)
        self._members.mark_all()
        return slots[self._members.draw(priorities[slots], count, generator)]

    def probabilities(self, priorities: np.ndarray) -> np.ndarray:
        """Raises an error."""
        raise NotImplementedError(
            f"With pool_size={self._size} the probability of a slot is an average over all pools, "
            "which has no closed form. Use pool_size=None for exact probabilities."
        )
