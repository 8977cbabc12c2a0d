"""Base class of the samplers whose priorities are a signal computed from drawn batches."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.samplers.priority import PrioritySampler
from torchrl_vmfer.samplers.slots import SlotArray

__all__ = ["ScoredSampler"]

_PATIENCE = 100  # number of batches without any signal before a warning
_NEVER = -1

# For each signal: its name, the update that computes it, the batch, and its values.
_SIGNALS = {
    "factor": ("factor", "actor", "batch", 'metadata["vmf_factor"]'),
    "gradient_norm": ("gradient norm", "actor", "batch", 'metadata["vmf_gradient_norm"]'),
    "td_error": ("TD error", "critic", 'batch["index"]', "td_error.abs()"),
}


class ScoredSampler(PrioritySampler):
    """A sampler that records when the priority of each slot was last updated.

    A slot is unscored, and has the default priority, until its priority is updated for the first
    time after a write.

    A sampler that never receives its signal draws uniformly. It warns once, after 100 batches.

    Subclasses set ``signal`` and implement ``_scored``.
    """

    signal: ClassVar[str]
    """What ``update_priority`` expects: ``"factor"``, ``"td_error"``, ``"gradient_norm"``, or, with
    a training loop of your own, anything else."""

    def __init__(self) -> None:
        super().__init__()
        self._num_updates = 0
        self._last_update = SlotArray(np.int32)  # the number of the update of each slot
        self._batches_without_signal: int | None = 0  # None: stop counting

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        """The priorities to store for slots that were given ``priorities``."""
        raise NotImplementedError

    def priority_age(self) -> float:
        """The mean age of the priorities, in updates.

        The age of a priority is the number of ``update_priority`` calls since the one that set it.
        Unscored slots do not count. NaN if all slots are unscored.
        """
        last = self._last_update.array
        last = last[last != _NEVER]
        return self._num_updates - float(last.mean(dtype=np.float64)) if len(last) else math.nan

    def unscored_fraction(self) -> float:
        """The fraction of live slots whose priority was never updated; NaN without slots."""
        return len(self._unscored_slots()) / self.num_slots if self.num_slots else math.nan

    def _unscored_slots(self) -> np.ndarray:
        return (self._last_update.array == _NEVER).nonzero()[0]

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self._batches_without_signal is not None:
            self._count_batch_without_signal()
        return super()._draw(count)

    def _count_batch_without_signal(self) -> None:
        assert self._batches_without_signal is not None
        self._batches_without_signal += 1
        if self._batches_without_signal == _PATIENCE:
            self._batches_without_signal = None
            name, update, batch, values = _SIGNALS.get(
                self.signal, (self.signal, "actor", "batch", self.signal)
            )
            warnings.warn(
                f"{_PATIENCE} batches were drawn from a {type(self).__name__} that was never given "
                f"a {name}: they were uniform. After each {update} update, call "
                f"buffer.update_actor_priority({batch}, {values}), or, for a sampler of the "
                f'critics, buffer.update_priority(batch["index"], {values}).',
                stacklevel=2,
            )

    def _update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        if len(slots):
            self._write(slots, self._scored(slots, priorities))
            self._last_update.array[slots] = self._num_updates + 1
            self._count_update()

    def _count_update(self) -> None:
        self._num_updates += 1
        self._batches_without_signal = None

    def _renew(self, slots: np.ndarray) -> None:
        super()._renew(slots)
        self._last_update.array[slots] = _NEVER

    def _resize(self, length: int) -> None:
        super()._resize(length)
        self._last_update.resize(length, fill=_NEVER)

    def reset(self) -> None:
        """Removes all priorities."""
        super().reset()
        self._num_updates = 0
        self._last_update = SlotArray(np.int32)
        self._batches_without_signal = 0

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return super().state_dict() | {
            "num_updates": self._num_updates,
            "last_update": torch.from_numpy(self._last_update.array.copy()),
        }

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        super()._check_state(state_dict)
        count, last = state_dict["num_updates"], state_dict["last_update"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"num_updates of the state is {count!r}, not an integer of at least 0."
            )
        if not (
            isinstance(last, Tensor)
            and last.dtype is torch.int32
            and last.shape == state_dict["priorities"].shape
            and (not len(last) or (last.min() >= _NEVER and last.max() <= count))
        ):
            raise ValueError(
                "last_update of the state must hold, for each priority, one of its updates or -1."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        super().load_state_dict(state_dict)
        self._num_updates = state_dict["num_updates"]
        self._last_update.load(state_dict["last_update"].cpu().numpy())
        self._batches_without_signal = None if self._num_updates else 0
