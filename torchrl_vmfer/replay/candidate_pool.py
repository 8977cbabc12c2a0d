"""Resampling the actor's batch from a pool of uniformly drawn candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_vmfer.replay.actor_critic import ActorCriticReplayBuffer
from torchrl_vmfer.samplers.rank_distribution import RankDistribution
from torchrl_vmfer.samplers.vmf import VMFSampler

__all__ = ["CandidatePool"]

_FACTOR = ("vmf", "factor")


class CandidatePool:
    """Draws many transitions uniformly and resamples a batch from them by their factors.

    These are the paper's two ways (appendix "Combining vMFER with Hindsight Experience Replay")
    to deal with goals that change from sample to sample:

    - "sub-sample", without ``score``: the factors are those that the buffer's
      :class:`~torchrl_vmfer.VMFSampler` stores. Nothing is computed, so the pool can be large
      (2¹¹ and 2¹⁶ in the paper).
    - "direct", with ``score``: each candidate is read, gets its goal in hindsight and is scored
      with it by the present networks (256, 2560 and 12800 candidates in the paper).

    Candidates and batch are drawn with replacement, by the buffer's random generator.

    Args:
        buffer: a :class:`~torchrl_vmfer.HindsightReplayBuffer` or its parent class.
        size: how many candidates are drawn for each batch.
        mode: ``"uncertainty"`` (P ∝ factor) or ``"rank"`` (P ∝ 1/rank among the candidates, the
            highest factor having rank 1; equal factors share the probability of their ranks).
        score: gives the factors of a batch, as a tensor ``[n]`` or as ``("vmf", "factor")`` of a
            tensordict: :class:`~torchrl_vmfer.VMFUncertainty`, for example. Its ``in_keys`` are
            read along with those asked for; a function without them sees what is asked for.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(50, 3)}, [50]))
        >>> pool = CandidatePool(buffer, size=16, mode="rank")
        >>> pool.sample(keys=["observation"])["observation"].shape
        torch.Size([4, 3])
        >>> pool.probabilities(torch.tensor([1.0, 2.0, 2.0, 0.5]))
        tensor([0.1600, 0.3600, 0.3600, 0.1200], dtype=torch.float64)
        >>> pool = CandidatePool(buffer, 16, score=lambda batch: batch["observation"].norm(dim=-1))
        >>> pool.sample()["index"].shape
        torch.Size([4])
    """

    def __init__(
        self,
        buffer: ActorCriticReplayBuffer,
        size: int,
        mode: Literal["uncertainty", "rank"] = "uncertainty",
        score: Callable[[TensorDictBase], Tensor | TensorDictBase] | None = None,
    ) -> None:
        if not isinstance(buffer, ActorCriticReplayBuffer):
            raise TypeError(
                f"buffer must be an ActorCriticReplayBuffer, got {type(buffer).__name__}."
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a number of candidates of at least 1, got {size!r}.")
        if mode not in ("uncertainty", "rank"):
            raise ValueError(f"mode must be 'uncertainty' or 'rank', got {mode!r}.")
        if score is not None and not callable(score):
            raise TypeError(f"score must be a function of a batch, got {score!r}.")
        if score is None and not isinstance(buffer.actor_sampler, VMFSampler):
            raise TypeError(
                f"The buffer's actor sampler {type(buffer.actor_sampler).__name__} stores no "
                "factors: pass actor_sampler=VMFSampler() to the buffer, or `score=` here."
            )
        self.buffer = buffer
        self.size = size
        self.mode = mode
        self.score = score
        self._ranks = RankDistribution()

    def sample(
        self, batch_size: int | None = None, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Samples a batch for the actor.

        Args:
            batch_size: defaults to the buffer's.
            keys: a list of the entries to read. Defaults to all, which with ``score`` are read
                for every candidate.

        Returns:
            the batch, with its slots under ``"index"``.
        """
        buffer = self.buffer
        batch_size = buffer._batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError("No batch size: pass it to sample() or to the buffer's constructor.")
        if isinstance(keys, (str, tuple)):
            raise TypeError(f"keys must be a list of entries, got {keys!r}: pass [{keys!r}].")
        if self.score is None:
            return self._sample_by_stored_factors(batch_size, keys)
        return self._sample_by_score(batch_size, keys, self.score)

    def probabilities(self, factors: Tensor) -> Tensor:
        """The probability with which each candidate of a pool is drawn, in double precision.

        Args:
            factors: the factors of the candidates, ``[n]``.
        """
        values = _checked(factors)
        if self.mode == "rank":
            self._ranks.mark_all()
            return torch.from_numpy(self._ranks.probabilities(values))
        weights = values.astype(np.float64)
        return torch.from_numpy(weights / weights.sum())

    def _sample_by_stored_factors(
        self, batch_size: int, keys: Sequence[NestedKey] | None
    ) -> TensorDictBase:
        buffer = self.buffer
        with buffer._in_step():
            candidates = self._candidates()
            sampler = buffer.actor_sampler
            sampler._follow(buffer._storage)
            chosen = self._resample(sampler._keys.array[candidates.numpy()], batch_size)
            # A stored factor belongs to the base transition, whatever goal it is drawn with. So
            # goals for those that are chosen have the distribution of goals for the whole pool.
            read = self._read(candidates[chosen], keys)
        return self._finish(*read, keys)

    def _sample_by_score(
        self,
        batch_size: int,
        keys: Sequence[NestedKey] | None,
        score: Callable[[TensorDictBase], Tensor | TensorDictBase],
    ) -> TensorDictBase:
        buffer = self.buffer
        scored_keys = keys
        if keys is not None:
            scored_keys = list(dict.fromkeys([*keys, *getattr(score, "in_keys", ())]))
        with buffer._in_step():
            read = self._read(self._candidates(), scored_keys)
        candidates = self._finish(*read, scored_keys)
        factors = score(candidates.copy())
        if isinstance(factors, TensorDictBase):
            factors = factors.get(_FACTOR, None)
        if not isinstance(factors, Tensor) or factors.shape not in ((self.size,), (self.size, 1)):
            got = list(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
            raise ValueError(
                f"score gave {got} for {self.size} candidates: it must return a tensor "
                f"[{self.size}] of factors, or a tensordict with the entry {_FACTOR}."
            )
        chosen = self._resample(_checked(factors.reshape(-1)), batch_size)
        if keys is not None:
            candidates = candidates.select(*keys, "index", "index_generation", strict=False)
        return candidates[chosen]

    def _candidates(self) -> Tensor:
        length = len(self.buffer)
        if length == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        return (self._uniform(self.size) * length).to(torch.int64)

    def _resample(self, factors: np.ndarray, count: int) -> Tensor:
        if self.mode == "rank":
            self._ranks.mark_all()
            return torch.from_numpy(self._ranks.draw(factors, count, self.buffer._rng)[0])
        mass = np.cumsum(factors, dtype=np.float64)
        draws = self._uniform(count).numpy() * mass[-1]
        return torch.from_numpy(np.searchsorted(mass[:-1], draws, side="right"))

    def _uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, generator=self.buffer._rng, device="cpu")

    def _read(
        self, slots: Tensor, keys: Sequence[NestedKey] | None
    ) -> tuple[TensorDictBase, dict[str, Tensor]]:
        buffer = self.buffer
        index: Any = slots
        info = {"index": slots}
        if buffer._storage.ndim > 1:
            index = torch.unravel_index(slots, buffer._storage.shape)
            info["index"] = torch.stack(index, -1)
        if buffer._writer.tracks_generations:
            info["index_generation"] = buffer._writer.generations_of(index)
        return buffer._read(index, None if self._has_transform() else keys), info

    def _finish(
        self,
        data: TensorDictBase,
        info: dict[str, Tensor],
        keys: Sequence[NestedKey] | None,
    ) -> TensorDictBase:
        """What needs no lock: transforms, and leaving out what they alone asked for."""
        if self._has_transform():
            data = self.buffer._transform(data)
        if keys is not None:
            data = data.select(*keys)
        for key, value in info.items():
            data.set(key, value)
        return data

    def _has_transform(self) -> bool:
        transform: Any = self.buffer._transform
        return transform is not None and len(transform) > 0


def _checked(factors: Tensor) -> np.ndarray:
    if not isinstance(factors, Tensor) or factors.ndim != 1 or factors.is_complex():
        raise TypeError(f"The factors of candidates must be a tensor [n], got {factors!r}.")
    values = factors.detach().to("cpu", torch.float32)
    bad = ~(values > 0) | values.isinf()
    if bad.any():
        row = int(bad.int().argmax())
        raise ValueError(
            f"Candidate {row} has the factor {factors[row].item()}, but a sampling factor is a "
            "finite number above 0: check the gradients behind it."
        )
    return values.numpy()
