"""Samplers by the order of writing: one prefers recent experience, the other old experience."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer import arguments
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import Distribution, SlotArray, uniform


class _WriteOrderSampler(BaseSampler):
    """A sampler without priorities, whose draws depend only on the order of the writes.

    The priority of a slot is the number of its last write. Round-robin writers fill the slots in
    ascending order and then start again at slot 0, so that the newest slot determines the order of
    all others. After other writes, a draw sorts the slots.
    """

    records_updates = False
    _numbers: ClassVar[tuple[str, ...]] = ()
    update_priority = Sampler.update_priority  # has no effect, and says so
    _num_writes: int
    _newest: int  # the slot that was written last
    _is_ring: bool  # whether the slots were written in turn
    _sorted: np.ndarray | None  # slots by age; sorted when a draw needs them

    def __init__(self) -> None:
        super().__init__(Distribution())

    def reset(self) -> None:
        """Forgets the order of the slots."""
        super().reset()
        self._load(np.empty(0, np.int64))

    def _ages(self, count: int) -> np.ndarray:
        """Draws ages of slots, where the newest has age 0."""
        raise NotImplementedError

    def _age_probabilities(self) -> np.ndarray:
        """P of every age."""
        raise NotImplementedError

    def _draw(self, storage: Storage, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.from_numpy(self._slots_of(self._ages(count))), {}

    def _probabilities(self) -> np.ndarray:
        probabilities = np.empty(self.num_slots)
        probabilities[self._slots_of(np.arange(self.num_slots))] = self._age_probabilities()
        return probabilities

    def _slots_of(self, ages: np.ndarray) -> np.ndarray:
        count = self.num_slots
        if not self._is_ring and self._sorted is None:
            self._sorted = np.argsort(-self._priorities.array, kind="stable")
            self._newest = int(self._sorted[0])
            in_turn = (self._newest - np.arange(count)) % count
            self._is_ring = np.array_equal(self._sorted, in_turn)
        if self._sorted is None:
            return (self._newest - ages) % count
        return self._sorted[ages]

    def _mark(self, slots: np.ndarray) -> None:
        self._resize(max(self.num_slots, int(slots[0])))  # adds slots that were not reported
        self._record(slots)

    def _resize(self, length: int) -> None:
        """Sets the number of slots. New slots count as written now, in ascending order."""
        if length > self.num_slots:
            self._record(np.arange(self.num_slots, length))
        elif length < self.num_slots:
            self._load(self._priorities.array[:length])

    def _record(self, slots: np.ndarray) -> None:
        length = max(self.num_slots, int(slots.max()) + 1)
        before = np.concatenate([[self._newest], slots[:-1]])
        follows = (slots == before + 1) | ((slots == 0) & (before == length - 1))
        self._is_ring = bool(self._is_ring and follows.all())
        self._sorted = None
        self._priorities.resize(length, fill=self._num_writes)
        first, self._num_writes = self._num_writes + 1, self._num_writes + 1 + len(slots)
        # The last of several writes to a slot counts.
        self._priorities.array[slots] = np.arange(first, self._num_writes)
        self._newest = int(slots[-1])

    def _load(self, numbers: np.ndarray) -> None:
        self._priorities = SlotArray(np.int64)
        self._priorities.load(numbers)
        self._num_writes = int(numbers.max(initial=-1)) + 1
        self._newest = -1
        self._is_ring = len(numbers) == 0
        self._sorted = None

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return self._header() | {"written": torch.from_numpy(self._priorities.array.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        self._check_header(state_dict)
        self._load_numbers(state_dict)
        self._load(state_dict["written"].cpu().numpy())


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

    settings = ("decay", "min_size", "cycle")
    _numbers = ("position",)

    def __init__(
        self,
        decay: float = arguments.DECAY.default,
        min_size: int = arguments.MIN_SIZE.default,
        cycle: int = arguments.CYCLE.default,
    ) -> None:
        arguments.DECAY.check("decay", decay)
        arguments.MIN_SIZE.check("min_size", min_size)
        arguments.CYCLE.check("cycle", cycle)
        super().__init__()
        self.decay, self.min_size, self.cycle = float(decay), min_size, cycle

    def reset(self) -> None:
        """Forgets the order of the slots and starts a cycle."""
        super().reset()
        self.position = 0  # the number of batches drawn in this cycle

    def _num_recent(self) -> int:
        """The number of transitions that the next batch is drawn from."""
        size = self.num_slots * self.decay ** (self.position + 1)
        return min(self.num_slots, max(int(size), self.min_size))

    def _ages(self, count: int) -> np.ndarray:
        ages = (uniform(count, self.generator) * self._num_recent()).astype(np.int64)
        self.position = (self.position + 1) % self.cycle
        return ages

    def _age_probabilities(self) -> np.ndarray:
        recent = self._num_recent()
        return (np.arange(self.num_slots) < recent) / max(recent, 1)


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

    settings = ("exponent",)

    def __init__(self, exponent: float = arguments.AGE_EXPONENT.default) -> None:
        arguments.AGE_EXPONENT.check("exponent", exponent)
        super().__init__()
        self.exponent = float(exponent)

    def _ages(self, count: int) -> np.ndarray:
        newest = self.num_slots - 1
        place = uniform(count, self.generator) ** self.exponent * self.num_slots
        return newest - np.minimum(place.astype(np.int64), newest)  # a power may round to 1

    def _age_probabilities(self) -> np.ndarray:
        bounds = np.linspace(0, 1, self.num_slots + 1) ** (1 / self.exponent)
        return np.diff(bounds)[::-1]
