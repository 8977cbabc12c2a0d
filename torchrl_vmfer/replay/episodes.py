"""Replay buffer that follows episodes and draws n-step transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data import ListStorage
from torchrl.data.replay_buffers.writers import RoundRobinWriter

from torchrl_vmfer import arguments
from torchrl_vmfer._torchrl import position, revision, stored_rows
from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer
from torchrl_vmfer.replay.episode_index import EpisodeIndex
from torchrl_vmfer.replay.shared_writes import WriteTracker
from torchrl_vmfer.samplers.distributions import flat_slots

_STEPS = "steps_to_next_obs"  # read by TorchRL's value estimators and by compiled updates


class NStepReplayBuffer(ActorCriticReplayBuffer):
    """An :class:`~torchrl_vmfer.ActorCriticReplayBuffer` that draws n-step transitions.

    The storage keeps single steps, and samplers draw them. A batch that holds ``"next"`` is
    extended at sample time: its rewards are the discounted sums of up to ``n_step`` rewards,
    ``"next"`` is that of the last of these steps, and ``"steps_to_next_obs"`` ``[B, 1]`` is their
    number, from which TorchRL's losses compute the discount of the next value. The sum stops at the
    end of an episode, by termination or truncation, and at the newest stored step.

    An episode ends with a step that is done, or before a step of the same trajectory that does not
    start where the step before it ended, such as the first step of a restarted collector.

    Keyword Args:
        n_step: the largest number of steps.
        gamma: the discount factor, which must equal that of the loss.
        reward_key: the key of the reward.
        done_key: the key of the flag that marks the end of an episode.
        trajectory_key: the key of the trajectory number that TorchRL's collectors write. With it,
            transitions of several environments may be interleaved. Without it, episodes must be
            written one after the other.
        **kwargs: as in :class:`~torchrl_vmfer.ActorCriticReplayBuffer`. The storage must have
            one dimension and the writer must be round-robin (the default).

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = NStepReplayBuffer(
        ...     storage=LazyTensorStorage(100), batch_size=4, n_step=3, gamma=0.5
        ... )
        >>> step = torch.arange(4.0).unsqueeze(-1)
        >>> after = {"observation": step + 1, "reward": torch.ones(4, 1), "done": step == 3}
        >>> index = buffer.extend(TensorDict({"observation": step, "next": after}, [4]))
        >>> rows = buffer.read_rows(torch.tensor([0, 3]), None)
        >>> rows["next", "reward"].flatten(), rows["steps_to_next_obs"].flatten()
        (tensor([1.7500, 1.0000]), tensor([3, 1]))
    """

    _state_keys: tuple[NestedKey, ...] = ("observation",)  # the first stored one marks a state

    def __init__(
        self,
        *,
        n_step: int = arguments.N_STEP.default,
        gamma: float = 0.99,
        reward_key: NestedKey = ("next", "reward"),
        done_key: NestedKey = ("next", "done"),
        trajectory_key: NestedKey = ("collector", "traj_ids"),
        **kwargs: Any,
    ) -> None:
        arguments.N_STEP.check("n_step", n_step)
        self.n_step = n_step
        self._discounts = torch.tensor([gamma**k for k in range(n_step)], dtype=torch.float64)
        self.reward_key, self.done_key = unravel_key(reward_key), unravel_key(done_key)
        self.trajectory_key = unravel_key(trajectory_key)
        self._episode_index = EpisodeIndex()
        self._writes = WriteTracker()
        self._known_revision = 0  # revision of the storage, including reported writes
        super().__init__(**kwargs)

    def build(self) -> None:
        """Makes the components. Storage and writer must support episodes."""
        super().build()
        if self.storage.ndim != 1:
            raise ValueError(
                f"{type(self).__name__} requires a storage of one dimension, got "
                f"ndim={self.storage.ndim}: flatten the data. Trajectory numbers distinguish the "
                "environments."
            )
        if not isinstance(self.writer, RoundRobinWriter):
            raise ValueError(
                f"{type(self).__name__} requires a writer that overwrites the oldest data, got "
                f"{type(self.writer).__name__}: leave out `writer=` or pass a "
                "TensorDictRoundRobinWriter."
            )

    @property
    def episode_index(self) -> EpisodeIndex:
        """The index of the episodes, up to date with the storage."""
        with self.locked():
            self._follow_writes()
            return self._episode_index

    def read_rows(self, index: Any, keys: Sequence[NestedKey] | None) -> TensorDictBase:
        """Reads transitions and extends them to ``n_step`` steps."""
        data = self._stored_rows(index, keys)
        if self.n_step == 1 or "next" not in data.keys():  # noqa: SIM118
            return data
        windows, counts = self._windows(flat_slots(index, self.storage))
        following = self._stored_rows(torch.from_numpy(windows[:, -1]), keys)["next"]
        old = data.get(self.reward_key, None)
        data = data.copy()  # the elements of a `ListStorage` are the stored transitions themselves
        data["next"] = following.copy()
        data[_STEPS] = torch.from_numpy(counts).unsqueeze(-1).to(data.device)
        if old is not None:
            rewards = self._column(self.reward_key, windows.reshape(-1))
            data.set(self.reward_key, self._summed(rewards, counts).reshape(old.shape))
        return data

    def _stored_rows(self, index: Any, keys: Sequence[NestedKey] | None = None) -> TensorDictBase:
        return ActorCriticReplayBuffer.read_rows(self, index, keys)

    def _windows(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slots ``[B, n_step]`` of the steps from some slots on, and the numbers of steps."""
        self._follow_writes()
        return self._episode_index.windows(slots, self.n_step)

    def _summed(self, rewards: Tensor, counts: np.ndarray) -> Tensor:
        """The discounted sums of the rewards of windows."""
        if self.n_step == 1:
            return rewards
        steps = torch.arange(self.n_step) < torch.from_numpy(counts).unsqueeze(-1)
        weights = (self._discounts * steps).to(rewards.device)
        return (rewards.reshape(steps.shape) * weights).sum(-1).to(rewards.dtype)

    def _column(self, key: NestedKey, slots: np.ndarray) -> Any:
        """One entry of some slots. Skips other entries if the storage supports it."""
        index = torch.from_numpy(slots)
        rows = stored_rows(self.storage)
        if rows is None:
            return self._stored_rows(index).get(key, None)
        column = rows.get(key, None)
        return None if column is None else column.index_select(0, index.to(column.device))

    def _follow_writes(self) -> None:
        """Brings the index up to date with storage and writer."""
        index, length = self._episode_index, len(self.storage)
        slots = self._writes.slots(self.writer, self.storage)
        written = 0 if slots is None else len(slots)
        only_appended = self._only_appended(written) and written < length and len(index) > 0
        if only_appended and slots is not None:
            self._append(slots.numpy())
        if not only_appended or len(index) != length:
            self._rebuild()

    def _only_appended(self, written: int) -> bool:
        """Whether the storage has changed by these writes only since the last call."""
        current = revision(self.storage)
        others = current - self._known_revision
        self._known_revision = current
        # An unreported write of another process increments the revision at most once per row.
        return 0 <= others <= written if self.shared else others == 0

    def mark_update(self, index: Any) -> None:
        """Reports written slots to both samplers. Called by the writer."""
        super().mark_update(index)
        if not self.shared:
            count = len(index) if isinstance(index, Tensor) and index.ndim else 1
            # The revision of a `ListStorage` counts rows, that of other storages counts writes.
            self._known_revision += count if isinstance(self.storage, ListStorage) else 1

    def _rebuild(self) -> None:
        length = len(self.storage)
        self._episode_index.clear()
        self._writes.skip(self.writer)
        if length:
            self._check_entries()
            # The cursor is the oldest slot, or follows the newest slot if the ring is not full.
            self._append((position(self.writer)[1] + np.arange(length)) % length)

    def _append(self, slots: np.ndarray) -> None:
        done = self._column(self.done_key, slots)
        trajectory = self._column(self.trajectory_key, slots)
        if trajectory is None:
            numbers: np.ndarray = np.zeros(len(slots), np.int64)
        else:
            numbers = trajectory.reshape(-1).cpu().numpy().astype(np.int64, copy=False)
        flags = done.reshape(len(slots), -1).any(-1).cpu().numpy()
        self._episode_index.append(slots, numbers, flags, self._begins(slots, numbers))

    def _begins(self, slots: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
        """Which steps do not start where the last step of their trajectory ended."""
        previous = self._episode_index.previous(slots, trajectory)
        begins = np.zeros(len(slots), np.bool_)
        (follow,) = (previous >= 0).nonzero()
        for key in self._state_keys if len(follow) else ():
            now = self._column(key, slots[follow])
            before = self._column(("next", key), previous[follow])
            if isinstance(now, Tensor) and isinstance(before, Tensor):
                same = (now == before) | (now.isnan() & before.isnan())
                begins[follow] = ~same.reshape(len(follow), -1).all(-1).cpu().numpy()
                break
        return begins

    def _check_entries(self) -> None:
        """Checks the entries of the stored transitions."""
        row = self._stored_rows(torch.zeros(1, dtype=torch.int64))
        names = self._entry_names()
        if self.shared:  # processes interleave their episodes
            names.append("trajectory_key")
        entries = {name: row.get(getattr(self, name), None) for name in names}
        missing = [name for name, entry in entries.items() if entry is None]
        if missing:
            name, key = missing[0], getattr(self, missing[0])
            stored = ", ".join(sorted(map(str, row.keys(True, True))))
            raise ValueError(
                f"The stored transitions have no entry {key!r}, only {stored}. Store it, or pass "
                f"another key as `{name}=`."
            )
        self._check_shapes(entries)

    def _entry_names(self) -> list[str]:
        """The attributes with the keys of entries that must be stored."""
        return ["reward_key", "done_key"]

    def _check_shapes(self, entries: dict[str, Any]) -> None:
        if entries["reward_key"].numel() != 1:
            raise ValueError(
                f"{self.reward_key!r} has the shape {list(entries['reward_key'].shape[1:])}: "
                f"{type(self).__name__} requires one reward per transition."
            )

    def forget_writes(self) -> None:
        """Starts tracking writes again, after the contents were replaced."""
        super().forget_writes()
        self._episode_index.clear()
