"""Resampling of the actor's batch from scored candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_vmfer import arguments
from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer
from torchrl_vmfer.samplers.distributions import Mode, resampling

_FACTOR = ("vmf", "factor")


class CandidatePool:
    """A pool of uniformly drawn candidates, from which a batch is resampled by score.

    This is the paper's "direct" way to combine vMFER with hindsight relabeling: each candidate is
    read, relabeled and scored by the current networks (256, 2560 and 12800 candidates in the
    paper). The "sub-sample" by stored factors is ``VMFSampler(pool_size=...)``.

    Candidates and batch are drawn with replacement, by the buffer's random generator.

    Args:
        buffer: a :class:`~torchrl_vmfer.HindsightReplayBuffer` or its parent class.
        size: the number of candidates drawn for each batch.
        mode: ``"uncertainty"`` (P ∝ factor) or ``"rank"`` (P ∝ 1/rank among the candidates, where
            the highest factor has rank 1; equal factors share the probability of their ranks).
        score: returns the factors of a batch, as a tensor ``[n]`` or as ``("vmf", "factor")`` of a
            tensordict: :class:`~torchrl_vmfer.VMFUncertainty`, for example. Its ``in_keys`` are
            read in addition to the requested keys. A function without ``in_keys`` receives only the
            requested keys.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(50, 3)}, [50]))
        >>> def score(batch):
        ...     return batch["observation"].norm(dim=-1)
        >>> pool = CandidatePool(buffer, 16, "rank", score)
        >>> pool.sample(keys=["observation"])["observation"].shape
        torch.Size([4, 3])
        >>> pool.probabilities(torch.tensor([1.0, 2.0, 2.0, 0.5]))
        tensor([0.1600, 0.3600, 0.3600, 0.1200], dtype=torch.float64)
    """

    def __init__(
        self,
        buffer: ActorCriticReplayBuffer,
        size: int,
        mode: Mode = arguments.MODE.default,
        score: Callable[[TensorDictBase], Tensor | TensorDictBase] | None = None,
    ) -> None:
        if not isinstance(buffer, ActorCriticReplayBuffer):
            raise TypeError(
                f"buffer must be an ActorCriticReplayBuffer, got {type(buffer).__name__}."
            )
        arguments.POOL_SIZE.check("size", size)
        arguments.MODE.check("mode", mode)
        if score is None or not callable(score):
            raise TypeError(
                f"score must be a function of a batch, such as VMFUncertainty(loss), got {score!r}."
                f" To resample by stored factors, pass actor_sampler=VMFSampler({mode!r}, "
                f"pool_size={size}) to the buffer."
            )
        self.buffer = buffer
        self.size = size
        self.mode = mode
        self.score = score
        self._resampling = resampling(mode)

    def sample(
        self, batch_size: int | None = None, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Samples a batch for the actor, as ``sample_actor`` of the buffer does."""
        batch_size = self.buffer.batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError("No batch size: pass it to sample() or to the buffer's constructor.")
        read = keys
        if keys is not None and not isinstance(keys, (str, tuple)):
            read = list(dict.fromkeys([*keys, *getattr(self.score, "in_keys", ())]))
        candidates = self.buffer.sample_uniformly(self.size, keys=read)
        factors = _checked(self._scores(candidates))
        self._resampling.mark_all()
        chosen = self._resampling.draw(factors, batch_size, self.buffer.generator)
        if keys is not None:
            candidates = candidates.select(*keys, "index", "index_generation", strict=False)
        return candidates[torch.from_numpy(chosen)]

    def probabilities(self, factors: Tensor) -> Tensor:
        """The probability of each candidate with factors ``[n]``, in double precision."""
        return torch.from_numpy(self._resampling.probabilities(_checked(factors)))

    def _scores(self, candidates: TensorDictBase) -> Tensor:
        factors = self.score(candidates.copy())
        if isinstance(factors, TensorDictBase):
            factors = factors.get(_FACTOR, None)
        if not isinstance(factors, Tensor) or factors.shape not in ((self.size,), (self.size, 1)):
            got = list(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
            raise ValueError(
                f"score returned {got} for {self.size} candidates: it must return a tensor "
                f"[{self.size}] of factors, or a tensordict with the entry {_FACTOR}."
            )
        return factors.reshape(-1)


def _checked(factors: Tensor) -> np.ndarray:
    if not isinstance(factors, Tensor) or factors.ndim != 1 or factors.is_complex():
        raise TypeError(f"The factors of candidates must be a tensor [n], got {factors!r}.")
    values = factors.detach().to("cpu", torch.float32)
    bad = ~(values > 0) | values.isinf()
    if bad.any():
        row = int(bad.int().argmax())
        raise ValueError(
            f"Candidate {row} has the factor {factors[row].item()}, but a sampling factor is a "
            "finite number above 0: check the gradients it was computed from."
        )
    return values.numpy()
