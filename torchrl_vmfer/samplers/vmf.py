"""The vMFER sampler: transitions on which the critics agree are drawn more often."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.directional import MAX_FACTOR
from torchrl_vmfer.samplers.keyed import KeyedSampler
from torchrl_vmfer.samplers.rank_distribution import RankDistribution

__all__ = ["VMFSampler"]

# Proposals per missing draw, round by round. Critics that mostly agree let the first round
# suffice; among factors of 1, the lowest that two critics give, one proposal in e is accepted.
_ROUNDS = (1.5, 3, 3, 3, 3, 3, 3, 3)


class VMFSampler(KeyedSampler):
    """Samples transitions for the actor by the uncertainty of their gradient directions.

    Each slot of the storage holds a sampling factor p_j = exp(R μᵀx_e), which
    :class:`~torchrl_vmfer.VMFTD3Loss`, :class:`~torchrl_vmfer.VMFSACLoss` and
    :class:`~torchrl_vmfer.VMFUncertainty` compute and ``update_priority(index, factor)`` stores.
    Draws are independent, with replacement, and follow the present factors exactly:

    - ``mode="uncertainty"``: P(j) = p_j / Σ p (Eq. 8). Since p_j ≤ e, rejection sampling draws
      and updates at a cost that does not depend on the size of the buffer.
    - ``mode="rank"``: P(j) ∝ 1/rank(j), the highest factor having rank 1 (Eq. 9). Equal
      factors share the probability of their ranks evenly.

    The state is kept on the CPU, whatever the storage's device. No importance weights are
    emitted: the actor's distribution is changed on purpose.

    Args:
        mode: ``"uncertainty"`` or ``"rank"``.

    Keyword Args:
        initial_factor: the factor of a freshly written slot. The paper's 1 is the lowest value
            two critics can give, so that new transitions are not favoured.
        smoothing: the share of the old factor that an update keeps,
            p ← smoothing · p + (1 - smoothing) · p_new. 0.9 is the paper's running average for
            hindsight replay.

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
        mode: Literal["uncertainty", "rank"] = "uncertainty",
        *,
        initial_factor: float = 1.0,
        smoothing: float = 0.0,
    ) -> None:
        if mode not in ("uncertainty", "rank"):
            raise ValueError(f"mode must be 'uncertainty' or 'rank', got {mode!r}.")
        if not (0 < initial_factor <= MAX_FACTOR and np.float32(initial_factor) > 0):
            raise ValueError(f"initial_factor must lie in (0, e], got {initial_factor}.")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}.")
        super().__init__()
        self._ranks = RankDistribution() if mode == "rank" else None
        self.initial_factor = initial_factor
        self.smoothing = smoothing

    @property
    def mode(self) -> Literal["uncertainty", "rank"]:
        """How probabilities follow from the factors."""
        return "uncertainty" if self._ranks is None else "rank"

    @property
    def default_priority(self) -> float:
        """The factor of a freshly written slot."""
        return self.initial_factor

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        factors = self._keys.array
        if self._ranks is None:
            slots = self._draw_by_rejection(factors, count)
        else:
            slots, *_ = self._ranks.draw(factors, count, self._rng)
        return torch.from_numpy(slots), {}

    def _draw_by_rejection(self, factors: np.ndarray, count: int) -> np.ndarray:
        accepted: list[np.ndarray] = []
        missing = count
        for proposals_per_draw in _ROUNDS:
            size = int(proposals_per_draw * missing) + 16
            place, height = self._uniform(2 * size).reshape(2, size)
            slots = (place * len(factors)).astype(np.int64)
            accepted.append(slots[height * MAX_FACTOR < factors[slots]][:missing])
            missing -= len(accepted[-1])
            if missing == 0:
                break
        else:
            # Factors far below 1 are never what the critics give, but they are allowed.
            accepted.append(self._draw_by_inversion(factors, missing))
        return accepted[0] if len(accepted) == 1 else np.concatenate(accepted)

    def _draw_by_inversion(self, factors: np.ndarray, count: int) -> np.ndarray:
        mass = np.cumsum(factors, dtype=np.float64)
        return mass[:-1].searchsorted(self._uniform(count) * mass[-1], side="right")

    def _uniform(self, count: int) -> np.ndarray:
        # torch.randint favours low numbers by up to n/2³², and single precision would round
        # small factors to multiples of 2⁻²⁴.
        return torch.rand(count, dtype=torch.float64, generator=self._rng, device="cpu").numpy()

    def _probabilities(self) -> np.ndarray:
        if self._ranks is not None:
            return self._ranks.probabilities(self._keys.array)
        factors = self._keys.array.astype(np.float64)
        return factors / factors.sum()

    def _check(self, keys: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        good = (keys.astype(np.float32) > 0) & (keys <= MAX_FACTOR * (1 + 2 * epsilon))
        return good, "a sampling factor exp(R μᵀx) lies in (0, e]: check the gradients behind it."

    def _update(self, slots: np.ndarray, keys: np.ndarray) -> None:
        keys = np.minimum(keys, np.float32(MAX_FACTOR))
        if self.smoothing:
            old = self._keys.array[slots]
            keys = np.float32(self.smoothing) * old + np.float32(1 - self.smoothing) * keys
        self._write(slots, keys)

    def __repr__(self) -> str:
        return (
            f"VMFSampler(mode={self.mode!r}, initial_factor={self.initial_factor}, "
            f"smoothing={self.smoothing})"
        )
