"""The vMFER sampler, which prefers transitions on which the critics agree."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.directional import MAX_FACTOR
from torchrl_vmfer.samplers.priority import PrioritySampler, uniform
from torchrl_vmfer.samplers.rank_distribution import RankDistribution
from torchrl_vmfer.samplers.resampling import (
    Mode,
    Resampling,
    check_mode,
    check_pool_size,
    draw_by_inversion,
)

__all__ = ["VMFSampler"]

# Proposals per missing draw in each round. If critics mostly agree, the first round suffices. With
# all factors at 1, the lowest value for two critics, one proposal in e is accepted.
_ROUNDS = (1.5, 3, 3, 3, 3, 3, 3, 3)
_PATIENCE = 100  # number of batches without any factor before a warning


class VMFSampler(PrioritySampler):
    """A sampler for the actor, based on the uncertainty of gradient directions.

    Each slot of the storage holds a sampling factor p_j = exp(R μᵀx_e), which
    :class:`~torchrl_vmfer.VMFTD3Loss`, :class:`~torchrl_vmfer.VMFSACLoss` and
    :class:`~torchrl_vmfer.VMFUncertainty` compute and ``update_priority(index, factor)`` stores.
    Draws are independent, with replacement, and follow the current factors exactly:

    - ``mode="uncertainty"``: P(j) = p_j / Σ p (Eq. 8). Since p_j ≤ e, the cost of drawing by
      rejection and of updates is independent of the buffer size.
    - ``mode="rank"``: P(j) ∝ 1/rank(j), where the highest factor has rank 1 (Eq. 9). Equal
      factors share the probability of their ranks evenly.

    With ``pool_size``, the paper's "sub-sample", each batch has a separate pool: ``pool_size``
    slots are drawn uniformly, with replacement, and the batch is drawn from this pool by the stored
    factors, with the probabilities above restricted to the pool. The draws of one batch share a
    pool and are not independent.

    A sampler that is never given a factor draws uniformly. It warns once, after 100 batches.

    The state is kept on the CPU, regardless of the storage's device. The sampler returns no
    importance weights, because the actor's distribution is changed on purpose.

    Args:
        mode: ``"uncertainty"`` or ``"rank"``.

    Keyword Args:
        initial_factor: the factor of a newly written slot. The paper's value of 1 is the lowest
            that two critics can give, so that new transitions are not preferred.
        smoothing: the weight of the old factor in an update,
            p ← smoothing · p + (1 - smoothing) · p_new. 0.9 is the paper's running average for
            hindsight replay.
        pool_size: the number of candidates for each batch; 2048 and 65536 in the paper. ``None``
            draws from the whole buffer. Loading a state with another pool size raises an error.

    Examples:
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

    _usual = (1e-30, MAX_FACTOR)

    def __init__(
        self,
        mode: Mode = "uncertainty",
        *,
        initial_factor: float = 1.0,
        smoothing: float = 0.0,
        pool_size: int | None = None,
    ) -> None:
        check_mode(mode)
        if pool_size is not None:
            check_pool_size("pool_size", pool_size)
        if not (0 < initial_factor <= MAX_FACTOR and np.float32(initial_factor) > 0):
            raise ValueError(f"initial_factor must lie in (0, e], got {initial_factor}.")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}.")
        super().__init__()
        self._mode = mode
        self._pool_size = pool_size
        self._pool = None if pool_size is None else Resampling(mode)
        self._ranks = RankDistribution() if mode == "rank" and pool_size is None else None
        self.initial_factor = initial_factor
        self.smoothing = smoothing
        self._batches_without_factors: int | None = 0  # None: stop counting

    @property
    def mode(self) -> Mode:
        """How the probabilities depend on the factors."""
        return self._mode

    @property
    def pool_size(self) -> int | None:
        """The number of candidates for each batch, or ``None`` for the whole buffer."""
        return self._pool_size

    @property
    def default_priority(self) -> float:
        """The factor of a newly written slot."""
        return self.initial_factor

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self._batches_without_factors is not None:
            self._count_batch_without_factors()
        factors = self._priorities.array
        if self._pool is not None and self._pool_size is not None:
            place = uniform(self._pool_size, self.generator)
            slots = (place * len(factors)).astype(np.int64)
            slots = slots[self._pool.draw(factors[slots], count, self.generator)]
        elif self._ranks is not None:
            slots, *_ = self._ranks.draw(factors, count, self.generator)
        else:
            slots = self._draw_by_rejection(factors, count)
        return torch.from_numpy(slots), {}

    def _count_batch_without_factors(self) -> None:
        assert self._batches_without_factors is not None
        self._batches_without_factors += 1
        if self._batches_without_factors == _PATIENCE:
            self._batches_without_factors = None
            warnings.warn(
                f"{_PATIENCE} batches were drawn from a VMFSampler that was never given a factor: "
                "they were uniform. After each actor update, call "
                'buffer.update_actor_priority(batch, metadata["vmf_factor"]), or, for a buffer '
                'with one sampler, buffer.update_priority(batch["index"], metadata["vmf_factor"]).',
                stacklevel=2,
            )

    def _draw_by_rejection(self, factors: np.ndarray, count: int) -> np.ndarray:
        accepted: list[np.ndarray] = []
        missing = count
        for proposals_per_draw in _ROUNDS:
            size = int(proposals_per_draw * missing) + 16
            place, height = uniform(2 * size, self.generator).reshape(2, size)
            slots = (place * len(factors)).astype(np.int64)
            accepted.append(slots[height * MAX_FACTOR < factors[slots]][:missing])
            missing -= len(accepted[-1])
            if missing == 0:
                break
        else:
            # Critics never yield factors far below 1, but such factors are allowed.
            accepted.append(draw_by_inversion(factors, missing, self.generator))
        return accepted[0] if len(accepted) == 1 else np.concatenate(accepted)

    def _probabilities(self) -> np.ndarray:
        if self._pool is not None:
            raise NotImplementedError(
                f"With pool_size={self._pool_size} the probability of a slot is an average over "
                "all pools, which has no closed form. Use pool_size=None for exact probabilities."
            )
        if self._ranks is not None:
            return self._ranks.probabilities(self._priorities.array)
        factors = self._priorities.array.astype(np.float64)
        return factors / factors.sum()

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        valid = (priorities.astype(np.float32) > 0) & (priorities <= MAX_FACTOR * (1 + 2 * epsilon))
        return valid, "a sampling factor exp(R μᵀx) lies in (0, e]: check its gradients."

    def _update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        priorities = np.minimum(priorities, np.float32(MAX_FACTOR))
        if self.smoothing:
            old = self._priorities.array[slots]
            priorities = (
                np.float32(self.smoothing) * old + np.float32(1 - self.smoothing) * priorities
            )
        self._write(slots, priorities)
        if len(slots):
            self._batches_without_factors = None

    def reset(self) -> None:
        """Removes all factors."""
        super().reset()
        self._batches_without_factors = 0

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return super().state_dict() | {"pool_size": self._pool_size}

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        if state_dict["pool_size"] != self._pool_size:
            raise ValueError(
                f"The state was saved with pool_size={state_dict['pool_size']!r}, but this sampler "
                f"has pool_size={self._pool_size}: construct it with the pool_size of the state."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        super().load_state_dict(state_dict)
        has_factors = (self._priorities.array != np.float32(self.initial_factor)).any()
        self._batches_without_factors = None if has_factors else 0

    def __repr__(self) -> str:
        return (
            f"VMFSampler(mode={self.mode!r}, initial_factor={self.initial_factor}, "
            f"smoothing={self.smoothing}, pool_size={self.pool_size})"
        )
