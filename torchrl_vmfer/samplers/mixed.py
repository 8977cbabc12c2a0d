"""The sampler that draws a share of each batch from each of two samplers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data import PrioritizedSampler
from torchrl.data.replay_buffers.samplers import Sampler, SamplerWithoutReplacement, SliceSampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import empty_sampler, set_generator
from torchrl_vmfer.samplers.adapters import (
    load_sampler_state,
    probabilities_of,
    report_existing,
    sampler_state,
    signal_of,
    takes_td_errors,
)
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import flat_slots, uniform

_WEIGHT = "priority_weight"


class MixedSampler(BaseSampler):
    """A sampler that draws a share of each batch from one sampler and the rest from another.

    On average, ``share * batch_size`` rows come from ``first``: a fractional number is rounded up
    or down at random. The rows of ``first`` precede those of ``second``. A sampler
    without replacement may return fewer rows at the end of a pass. If only one of the samplers
    returns importance weights (``"priority_weight"``), the rows of the other have the weight 1.
    Other metadata are kept only if both samplers return them. The probability of a slot is its mean
    over the rows of a batch.

    Writes are reported to both samplers, and ``update_priority`` to those that use priorities. Both
    use the random generator of the buffer.

    Args:
        first: any TorchRL sampler, except slice samplers.
        second: another sampler. If both use priorities, they must expect the same signal; TorchRL's
            ``PrioritizedSampler`` accepts any.
        share: the share of the batch that is drawn from ``first``, from 0 to 1. Loading a state
            with another share raises an error.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
        >>> from torchrl_vmfer import VMFSampler
        >>> sampler = MixedSampler(VMFSampler(), RandomSampler(), share=0.5)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=sampler, batch_size=8
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(2, 3)}, [2]))
        >>> buffer.update_priority(index, torch.tensor([0.5, 1.5]))
        >>> sampler.probabilities()
        tensor([0.3750, 0.6250], dtype=torch.float64)
        >>> buffer.sample()["index"].shape
        torch.Size([8])
    """

    settings = ("share",)
    _numbers = ()

    def __init__(self, first: Sampler, second: Sampler, share: float) -> None:
        for name, part in {"first": first, "second": second}.items():
            if not isinstance(part, Sampler):
                raise TypeError(f"{name} must be a Sampler, got {part!r}.")
            if isinstance(part, SliceSampler):
                raise TypeError(f"{name} must draw single transitions, not slices: got {part!r}.")
        if first is second:
            raise ValueError("first and second must be two samplers, got the same one twice.")
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share!r}.")
        # TorchRL's PrioritizedSampler takes any signal.
        strict = [part for part in (first, second) if not isinstance(part, PrioritizedSampler)]
        signals = {signal_of(part) for part in strict} - {None}
        if len(signals) > 1:
            raise ValueError(
                f"first and second must expect the same signal, but {type(first).__name__} expects "
                f"{signal_of(first)!r} and {type(second).__name__} {signal_of(second)!r}."
            )
        self.first, self.second = self.parts = first, second
        self.share = float(share)
        self._prioritized = [part for part in self.parts if signal_of(part) is not None]
        self.signal = signals.pop() if signals else "factor" if self._prioritized else None
        self._recording = [part for part in self.parts if getattr(part, "records_updates", False)]
        self._num_slots = 0

    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        return self._num_slots

    @property
    def takes_td_errors(self) -> bool:
        """Whether ``update_priority`` expects TD errors if this is the sampler of the critics."""
        return bool(self._prioritized) and all(map(takes_td_errors, self._prioritized))

    def _draw(self, storage: Storage, count: int) -> tuple[Any, dict[str, Tensor]]:
        fraction, whole = math.modf(self.share * count)
        sizes = [int(whole), count - int(whole)]
        if fraction and uniform(1, self.generator)[0] < fraction:  # so that the mean is exact
            sizes = [sizes[0] + 1, sizes[1] - 1]
        indices, infos = [], []
        for part, size in zip(self.parts, sizes, strict=True):
            set_generator(part, self.generator)
            index, info = _drawn(part, storage, size)
            indices.append(index if isinstance(index, tuple) else (index,))
            infos.append(info)
        first, second = indices
        joined = tuple(map(_joined, first, second))
        info = _joined_info(infos, (len(first[0]), len(second[0])))
        return joined if storage.ndim > 1 else joined[0], info

    def _probabilities(self) -> np.ndarray:
        first, second = (probabilities_of(part, self._num_slots).numpy() for part in self.parts)
        return self.share * first + (1 - self.share) * second

    def follow(self, storage: Storage | None) -> None:
        """Updates both samplers to the length of the storage."""
        if storage is not None:
            for part in self.parts:
                report_existing(part, storage, first=self._num_slots)
            self._num_slots = len(storage)

    def priority_age(self) -> float:
        """The mean age of the priorities in the first sampler that records it; NaN if none does."""
        return next((part.priority_age() for part in self._recording), math.nan)

    def unscored_fraction(self) -> float:
        """The fraction of unscored slots in the first sampler that records it; NaN if none does."""
        return next((part.unscored_fraction() for part in self._recording), math.nan)

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Reports written slots to both samplers."""
        slots = flat_slots(index, storage)
        num_new = int((slots >= self._num_slots).sum())
        if storage is not None and num_new < len(storage) - self._num_slots:
            self.follow(storage)  # some slots were never reported
        self._num_slots = max(self._num_slots, int(slots.max(initial=-1)) + 1)
        for part in self.parts:
            part.mark_update(index, storage=storage)

    def add(self, index: int) -> None:
        """Reports a new transition to both samplers."""
        for part in self.parts:
            part.add(index)

    def extend(self, index: Tensor) -> None:
        """Reports new transitions to both samplers."""
        for part in self.parts:
            part.extend(index)

    @torch.compiler.disable
    def update_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Updates the priorities of the samplers that use them, or of none if one rejects them."""
        self.follow(storage)
        if len(self._prioritized) > 1:
            self.check_priority(index, priority, storage=storage)
        for part in self._prioritized:
            part.update_priority(index, priority, storage=storage)

    def check_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Raises the errors of :meth:`update_priority` that the samplers can check in advance."""
        for part in self._prioritized:
            if hasattr(part, "check_priority"):
                part.check_priority(index, priority, storage=storage)

    def reset(self) -> None:
        """Resets both samplers to the state for an empty storage."""
        for part in self.parts:
            empty_sampler(part)
        self._num_slots = 0

    def state_dict(self) -> dict[str, Any]:
        """The states of both samplers as plain tensors, numbers and strings."""
        return self._header() | {
            "num_slots": self._num_slots,
            "first": sampler_state(self.first, self._num_slots, "first"),
            "second": sampler_state(self.second, self._num_slots, "second"),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_header(state_dict)
        before = self.state_dict()
        try:
            self._load_parts(state_dict)
        except Exception:
            self._load_parts(before)
            raise

    def _load_parts(self, state_dict: dict[str, Any]) -> None:
        load_sampler_state(self.first, state_dict["first"])
        load_sampler_state(self.second, state_dict["second"])
        self._num_slots = state_dict["num_slots"]


def _drawn(part: Sampler, storage: Storage, size: int) -> tuple[Any, dict[str, Tensor]]:
    if size == 0 and isinstance(part, SamplerWithoutReplacement):  # it cannot draw nothing
        none = torch.empty(0, dtype=torch.int64)
        return none if storage.ndim == 1 else (none,) * storage.ndim, {}
    return part.sample(storage, size)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first, second.to(first.device)])


def _joined_info(infos: list[dict[str, Tensor]], counts: tuple[int, int]) -> dict[str, Tensor]:
    """The metadata of both draws, with the weight 1 for a sampler without weights."""
    first, second = infos
    if _WEIGHT in first or _WEIGHT in second:
        # TorchRL's PrioritizedSampler returns a scalar for a batch of one.
        first, second = (
            info | {_WEIGHT: torch.as_tensor(info.get(_WEIGHT, torch.ones(count))).reshape(count)}
            for info, count in zip(infos, counts, strict=True)
        )
    return {key: _joined(first[key], second[key]) for key in first if key in second}
