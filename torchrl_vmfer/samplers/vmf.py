"""The vMFER sampler, which prefers transitions on which the critics agree."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer import arguments
from torchrl_vmfer.directional import MAX_FACTOR
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import (
    LARGEST_WEIGHT,
    Distribution,
    Mode,
    PowerDistribution,
    RankDistribution,
    Resampling,
    draw_by_inversion,
    powers,
    uniform,
)
from torchrl_vmfer.samplers.ranks import compiled_functions

__all__ = ["VMFSampler"]

# Proposals per missing draw in each round. If critics mostly agree, the first round suffices. With
# all factors at 1, the lowest value for two critics, one proposal in e is accepted.
_ROUNDS = (1.5, 3, 3, 3, 3, 3, 3, 3)


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

    signal: ClassVar[str] = "factor"
    _first_maximum = None

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
        super().__init__()
        self._mode = mode
        self._power = float(power)
        # The smallest factor whose power, or the inverse of it, does not overflow.
        self._smallest = LARGEST_WEIGHT ** (-1 / abs(power)) if power else 0.0
        self._usual = (max(1e-30, self._smallest), MAX_FACTOR)
        if initial_factor < self._smallest:
            raise ValueError(
                f"initial_factor must be at least {self._smallest:.3g} with power={power}, so that "
                f"p^power does not overflow, got {initial_factor}."
            )
        self._pool_size = pool_size
        self._pool = None if pool_size is None else Resampling(mode, self._power)
        self._distribution = self._make_distribution()
        self.initial_factor = initial_factor
        self.smoothing = smoothing

    def _make_distribution(self) -> Distribution | None:
        """The distribution to draw from, or ``None`` if a pool or rejection is used."""
        if self._pool is not None:
            return None
        if self._mode == "rank":
            return RankDistribution()
        # On average, rejection accepts at least one in e^power proposals.
        return None if 0 <= self._power <= 1 else PowerDistribution(self._power)

    @property
    def mode(self) -> Mode:
        """How the probabilities depend on the factors."""
        return self._mode

    @property
    def power(self) -> float:
        """The exponent of the factor."""
        return self._power

    @property
    def pool_size(self) -> int | None:
        """The number of candidates for each batch, or ``None`` for the whole buffer."""
        return self._pool_size

    @property
    def default_priority(self) -> float:
        """The factor of a newly written slot."""
        return self.initial_factor

    def _draw_slots(self, count: int) -> np.ndarray:
        if self._distribution is not None:
            return super()._draw_slots(count)
        factors = self._priorities.array
        if self._pool is None or self._pool_size is None:
            return self._draw_by_rejection(factors, count)
        place = uniform(self._pool_size, self.generator)
        slots = (place * len(factors)).astype(np.int64)
        return slots[self._pool.draw(factors[slots], count, self.generator)]

    def _draw_by_rejection(self, factors: np.ndarray, count: int) -> np.ndarray:
        accepted: list[np.ndarray] = []
        missing = count
        bound = MAX_FACTOR**self._power
        compiled = compiled_functions() if self._power == 1 else None
        for proposals_per_draw in _ROUNDS:
            size = int(proposals_per_draw * missing) + 16
            random = uniform(2 * size, self.generator).reshape(2, size)
            if compiled is not None:
                slots = np.empty(size, np.int64)
                slots = slots[: compiled.accept_slots(random, factors, bound, missing, slots)]
            else:
                slots = (random[0] * len(factors)).astype(np.int64)
                weights = powers(factors[slots], self._power)
                slots = slots[random[1] * bound < weights][:missing]
            accepted.append(slots)
            missing -= len(slots)
            if missing == 0:
                break
        else:
            # Critics never yield factors far below 1, but such factors are allowed.
            weights = powers(factors, self._power)
            accepted.append(draw_by_inversion(weights, missing, self.generator))
        return accepted[0] if len(accepted) == 1 else np.concatenate(accepted)

    def _probabilities(self) -> np.ndarray:
        if self._pool is not None:
            raise NotImplementedError(
                f"With pool_size={self._pool_size} the probability of a slot is an average over "
                "all pools, which has no closed form. Use pool_size=None for exact probabilities."
            )
        if self._distribution is not None:
            return super()._probabilities()
        weights = powers(self._priorities.array, self._power)
        return weights / weights.sum()

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        valid = (priorities.astype(np.float32) > 0) & (priorities <= MAX_FACTOR * (1 + 2 * epsilon))
        if not valid.all():
            return valid, "a sampling factor exp(R μᵀx) lies in (0, e]: check its gradients."
        return priorities >= self._smallest * (1 - 2 * epsilon), (
            f"its power {self._power:g} would overflow: a factor must be at least "
            f"{self._smallest:.3g}."
        )

    @torch.compiler.disable
    def update_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Sets the factors of some slots. If a slot occurs twice, the last factor wins.

        Args:
            index: the slots, as returned by ``sample``. Rows of -1 are skipped.
            priority: one factor for all, or one for each index.
            storage: passed by the replay buffer.
        """
        if storage is not None:
            self._follow(storage)
        if self.smoothing or not self._store(index, priority):
            super().update_priority(index, priority, storage=storage)
            return
        self._count_update()
        if self._distribution is not None:
            self._distribution.mark(index.numpy())

    def _store(self, index: Any, factors: Any) -> bool:
        """Stores factors by a compiled function; ``False`` if they need the general path."""
        compiled = compiled_functions()
        is_plain = (
            compiled is not None
            and type(index) is Tensor
            and isinstance(factors, Tensor)
            and (index.dtype, factors.dtype) == (torch.int64, torch.float32)
            and index.ndim == 1
            and index.shape == factors.shape
            and len(index) > 0
            and all(
                t.is_cpu and t.is_contiguous() and not t.requires_grad for t in (index, factors)
            )
        )
        return is_plain and compiled.store_factors(
            *(index.numpy(), factors.numpy(), *self._usual),
            *(self._priorities.array, self._last_update.array, self._num_updates + 1),
        )

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        priorities = np.minimum(priorities, np.float32(MAX_FACTOR))
        if self.smoothing:
            old = self._priorities.array[slots]
            priorities = (
                np.float32(self.smoothing) * old + np.float32(1 - self.smoothing) * priorities
            )
        return priorities

    def _settings(self) -> dict[str, Any]:
        return {"power": self._power, "pool_size": self._pool_size}

    def __repr__(self) -> str:
        power = "" if self.power == 1 else f"power={self.power:g}, "
        return (
            f"VMFSampler(mode={self.mode!r}, {power}initial_factor={self.initial_factor}, "
            f"smoothing={self.smoothing}, pool_size={self.pool_size})"
        )
