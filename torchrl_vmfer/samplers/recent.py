"""Samplers by the order of writing: one prefers recent experience, the other old experience."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer.samplers.base import BaseSampler, SlotArray, flat_slots, stored_slots
from torchrl_vmfer.samplers.distributions import uniform

__all__ = ["OldSampler", "RecentSampler"]


class WriteOrder:
    """Finds the slot that was written last, second to last, and so on.

    Round-robin writers fill the slots in ascending order and then start again at slot 0, so that
    the newest slot determines the order of all others. After other writes, the order is found by
    sorting, when it is needed.

    Examples:
        >>> order = WriteOrder()
        >>> order.write(np.array([0, 1, 2, 3]))
        >>> order.write(np.array([0, 1]))
        >>> order.slots_of_age(np.array([0, 1, 2, 3]))
        array([1, 0, 3, 2])
    """

    def __init__(self) -> None:
        self._written = SlotArray(np.int64)  # the number of the write to each slot
        self._num_writes = 0
        self._newest = -1
        self._is_ring = True
        self._sorted: np.ndarray | None = None  # slots by age, unless they form a ring

    def __len__(self) -> int:
        return len(self._written)

    @property
    def numbers(self) -> np.ndarray:
        """For each slot, a number that increases with the time of its last write; not copied."""
        return self._written.array

    def write(self, slots: np.ndarray) -> None:
        """Records writes, the oldest first. Slots below them that were not reported are older."""
        if len(slots) == 0:
            return
        self.resize(max(len(self), int(slots[0])))
        length = max(len(self), int(slots.max()) + 1)
        before = np.concatenate([[self._newest], slots[:-1]])
        follows = (slots == before + 1) | ((slots == 0) & (before == length - 1))
        self._is_ring = bool(self._is_ring and follows.all())
        self._sorted = None
        self._written.resize(length, fill=self._num_writes)
        first, self._num_writes = self._num_writes + 1, self._num_writes + 1 + len(slots)
        # The last of several writes to a slot counts.
        self._written.array[slots] = np.arange(first, self._num_writes)
        self._newest = int(slots[-1])

    def resize(self, length: int) -> None:
        """Sets the number of slots. New slots count as written now, in ascending order."""
        if length > len(self):
            self.write(np.arange(len(self), length))
        elif length < len(self):
            self.load(self.numbers[:length])

    def load(self, numbers: np.ndarray) -> None:
        """Restores the order from a copy of :attr:`numbers`."""
        self._written.load(numbers)
        self._num_writes = int(numbers.max(initial=-1)) + 1
        self._newest = int(numbers.argmax()) if len(numbers) else -1
        self._find_order()

    def slots_of_age(self, ages: np.ndarray) -> np.ndarray:
        """The slots with given ages, where the newest slot has age 0."""
        if not self._is_ring and self._sorted is None:
            self._find_order()
        if self._sorted is None:
            return (self._newest - ages) % len(self)
        return self._sorted[ages]

    def _find_order(self) -> None:
        oldest_first = np.roll(self.numbers, -1 - self._newest)
        self._is_ring = bool((np.diff(oldest_first) > 0).all())
        self._sorted = None if self._is_ring else np.argsort(-self.numbers, kind="stable")


class _WriteOrderSampler(BaseSampler):
    """A sampler without priorities, whose draws depend only on the order of the writes."""

    records_updates = False
    update_priority = Sampler.update_priority  # has no effect, and says so
    _file: ClassVar[str] = "write_order.pt"

    def __init__(self) -> None:
        super().__init__()
        self._order = WriteOrder()

    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        return len(self._order)

    @torch.compiler.disable
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Records the order of written slots. TorchRL calls it at every write."""
        self._order.write(stored_slots(flat_slots(index, storage)))

    def _resize(self, length: int) -> None:
        self._order.resize(length)

    def reset(self) -> None:
        """Forgets the order of the slots."""
        self._order = WriteOrder()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return self._header() | {"written": torch.from_numpy(self._order.numbers.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_header(state_dict)
        self._check_state(state_dict)
        self._order.load(state_dict["written"].cpu().numpy())

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        written = state_dict["written"]
        if not (isinstance(written, Tensor) and written.dtype is torch.int64 and written.ndim == 1):
            raise ValueError("written of the state is not a vector of integers.")


class RecentSampler(_WriteOrderSampler):
    """A sampler that emphasizes recent experience (ERE).

    Batches are drawn in cycles. With N stored transitions, batch k = 1, ..., ``cycle`` of a cycle
    is uniform over the newest max(N decay^k, min_size) of them, or over all if there are fewer
    (Wang and Ross, "Boosting Soft Actor-Critic: Emphasizing Recent Experience without Forgetting
    the Past", 2019, https://arxiv.org/abs/1906.04009). There, a cycle is the K updates after an
    episode of K steps, and the exponent is 1000 k / K. Here, the length of a cycle is fixed, and
    the default of 1000 is the usual length of an episode.

    The order of the transitions is that of the reported writes, for any writer. Data that were
    already in the storage count as written in the order of their slots. In a storage with several
    dimensions, the cells of one row are ordered as they are stored.

    Args:
        decay: the factor by which the number of transitions shrinks from batch to batch, in (0, 1].
        min_size: the smallest number of transitions to draw from.
        cycle: the number of batches after which a cycle starts again.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = RecentSampler(decay=0.5, min_size=1, cycle=2)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(4), sampler=sampler, batch_size=8
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(4, 2)}, [4]))
        >>> sampler.probabilities()  # of the next batch
        tensor([0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64)
        >>> buffer.sample()["index"].unique()
        tensor([2, 3])
        >>> sampler.probabilities()
        tensor([0., 0., 0., 1.], dtype=torch.float64)
    """

    def __init__(self, decay: float = 0.996, min_size: int = 5000, cycle: int = 1000) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"decay must lie in (0, 1], got {decay!r}.")
        for name, value in {"min_size": min_size, "cycle": cycle}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        super().__init__()
        self._decay, self._min_size, self._cycle = float(decay), min_size, cycle
        self._position = 0  # the number of batches drawn in this cycle

    @property
    def decay(self) -> float:
        """The factor by which the number of transitions shrinks from batch to batch."""
        return self._decay

    @property
    def min_size(self) -> int:
        """The smallest number of transitions to draw from."""
        return self._min_size

    @property
    def cycle(self) -> int:
        """The number of batches after which a cycle starts again."""
        return self._cycle

    def _num_recent(self) -> int:
        """The number of transitions that the next batch is drawn from."""
        size = self.num_slots * self._decay ** (self._position + 1)
        return min(self.num_slots, max(int(size), self._min_size))

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        ages = (uniform(count, self.generator) * self._num_recent()).astype(np.int64)
        self._position = (self._position + 1) % self._cycle
        return torch.from_numpy(self._order.slots_of_age(ages)), {}

    def _probabilities(self) -> np.ndarray:
        recent = self._num_recent()
        probabilities = np.zeros(self.num_slots)
        probabilities[self._order.slots_of_age(np.arange(recent))] = 1 / max(recent, 1)
        return probabilities

    def reset(self) -> None:
        """Forgets the order of the slots and starts a cycle."""
        super().reset()
        self._position = 0

    def _settings(self) -> dict[str, Any]:
        return {"decay": self._decay, "min_size": self._min_size, "cycle": self._cycle}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return super().state_dict() | {"position": self._position}

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        super()._check_state(state_dict)
        position = state_dict["position"]
        if not (isinstance(position, int) and 0 <= position < self._cycle):
            raise ValueError(
                f"position of the state is {position!r}, not a batch of a cycle of {self._cycle}."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        super().load_state_dict(state_dict)
        self._position = state_dict["position"]

    def __repr__(self) -> str:
        return f"RecentSampler(decay={self.decay}, min_size={self.min_size}, cycle={self.cycle})"


class OldSampler(_WriteOrderSampler):
    """A sampler that prefers old experience, whatever the critics say: a control.

    With n stored transitions in the order of their writes, the one at position ⌊n u^exponent⌋ is
    drawn, where u is uniform in [0, 1) and the oldest transition has position 0. The probability of
    position k is therefore ((k + 1) / n)^(1 / exponent) - (k / n)^(1 / exponent). The order is that
    of :class:`RecentSampler`.

    Args:
        exponent: how strongly old transitions are preferred, from 0.01 to 100; 1 is uniform, and
            less than 1 prefers new transitions.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = OldSampler(exponent=2.0)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler)
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(4, 2)}, [4]))
        >>> sampler.probabilities()
        tensor([0.5000, 0.2071, 0.1589, 0.1340], dtype=torch.float64)
    """

    def __init__(self, exponent: float = 2.0) -> None:
        if not 0.01 <= exponent <= 100:
            raise ValueError(f"exponent must lie in [0.01, 100], got {exponent!r}.")
        super().__init__()
        self._exponent = float(exponent)

    @property
    def exponent(self) -> float:
        """How strongly old transitions are preferred."""
        return self._exponent

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        newest = self.num_slots - 1
        place = uniform(count, self.generator) ** self._exponent * self.num_slots
        positions = np.minimum(place.astype(np.int64), newest)  # a power may round to 1
        return torch.from_numpy(self._order.slots_of_age(newest - positions)), {}

    def _probabilities(self) -> np.ndarray:
        count = self.num_slots
        bounds = (np.arange(count + 1) / max(count, 1)) ** (1 / self._exponent)
        probabilities = np.empty(count)
        probabilities[self._order.slots_of_age(np.arange(count))] = np.diff(bounds)[::-1]
        return probabilities

    def _settings(self) -> dict[str, Any]:
        return {"exponent": self._exponent}

    def __repr__(self) -> str:
        return f"OldSampler(exponent={self.exponent})"
