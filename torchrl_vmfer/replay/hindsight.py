"""Hindsight experience replay for actor and critics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NestedKey, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import RoundRobinWriter

from torchrl_vmfer.replay.actor_critic import ActorCriticReplayBuffer
from torchrl_vmfer.replay.episode_index import EpisodeIndex, Strategy
from torchrl_vmfer.samplers.slot_keys import flat_slots

__all__ = ["HindsightReplayBuffer"]

RewardFunction = Callable[[Tensor, Tensor], Tensor]


class HindsightReplayBuffer(ActorCriticReplayBuffer):
    """An :class:`~torchrl_vmfer.ActorCriticReplayBuffer` whose samples get goals in hindsight.

    Each sampled transition, the critics' and the actor's alike, keeps its goal with probability
    ``1 - her_ratio``, or else gets one that was achieved in its own episode (Andrychowicz et
    al. 2017), and the reward that belongs to it. The storage keeps the original data. Buffer
    transforms see the new goals. ``done`` and ``terminated`` stay as they are: reaching a goal
    does not end an episode.

    Goals come from what is in the buffer: not from steps that were overwritten, and of an
    unfinished episode from its steps so far. An index of the episodes is kept along with the
    writes, so that the cost of a sample does not depend on the size of the buffer. It follows
    from storage and writer, and is made anew from them after a load.

    Keyword Args:
        reward_fn: gives the rewards ``[n]`` or ``[n, 1]`` for achieved goals ``[n, *goal]`` and
            desired goals ``[n, *goal]``. :meth:`gymnasium_reward` makes one from an environment.
        her_ratio: the probability of a new goal, for each row on its own.
        strategy: which goals a row may get: ``"future"``, those achieved at its own step or
            later; ``"final"``, the last one; ``"episode"``, any one of its episode.
        goal_key: the desired goal. Its successor ``("next", goal_key)`` follows where stored.
        achieved_goal_key: the achieved goal, which also is the first argument of ``reward_fn``.
        reward_key: the reward.
        done_key: the end of an episode.
        trajectory_key: a number for each trajectory, as TorchRL's collectors write it. With it
            the transitions of several environments may be written in any mixture; where the
            data have none, they must come episode by episode.
        **kwargs: as in :class:`~torchrl_vmfer.ActorCriticReplayBuffer`. The storage must have
            one dimension and the writer must be a round-robin one, as is the default.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> def reward_fn(achieved, desired):
        ...     return -((achieved - desired).norm(dim=-1) > 0.5).float()
        >>> buffer = HindsightReplayBuffer(
        ...     storage=LazyTensorStorage(1000), batch_size=8, her_ratio=1.0, reward_fn=reward_fn
        ... )
        >>> step = torch.arange(4.0).unsqueeze(-1)
        >>> after = {"achieved_goal": step + 1, "reward": -torch.ones(4, 1), "done": step == 3}
        >>> data = {"observation": step, "desired_goal": torch.full((4, 1), 9.0), "next": after}
        >>> index = buffer.extend(TensorDict(data, [4]))
        >>> batch = buffer.sample()
        >>> bool((batch["desired_goal"] >= batch["next", "achieved_goal"]).all())
        True
        >>> sorted(buffer.sample_actor(keys=["observation", "desired_goal"]).keys())
        ['desired_goal', 'index', 'observation']
    """

    _initialized: bool

    def __init__(
        self,
        *,
        reward_fn: RewardFunction,
        her_ratio: float = 0.8,
        strategy: Strategy = "future",
        goal_key: NestedKey = "desired_goal",
        achieved_goal_key: NestedKey = ("next", "achieved_goal"),
        reward_key: NestedKey = ("next", "reward"),
        done_key: NestedKey = ("next", "done"),
        trajectory_key: NestedKey = ("collector", "traj_ids"),
        **kwargs: Any,
    ) -> None:
        if not callable(reward_fn):
            raise TypeError(
                f"reward_fn must be a function of achieved and desired goals, got {reward_fn!r}. "
                "For a Gymnasium environment pass HindsightReplayBuffer.gymnasium_reward(env)."
            )
        if not 0 <= her_ratio <= 1:
            raise ValueError(f"her_ratio is a probability and must lie in [0, 1], got {her_ratio}.")
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy must be one of {get_args(Strategy)}, got {strategy!r}.")
        for name in ("sample_unit", "consume_after_n_samples"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"HindsightReplayBuffer relabels single transitions that are overwritten in "
                    f"their order: leave out {name}={kwargs[name]!r}."
                )
        self.reward_fn = reward_fn
        self.her_ratio = her_ratio
        self.strategy: Strategy = strategy
        self.goal_key, self.achieved_goal_key, self.reward_key, self.done_key, trajectory = (
            unravel_key(key)
            for key in (goal_key, achieved_goal_key, reward_key, done_key, trajectory_key)
        )
        self.trajectory_key = trajectory
        self._next_goal_key = unravel_key(("next", self.goal_key))
        self._episode_index = EpisodeIndex()
        super().__init__(**kwargs)

    @staticmethod
    def gymnasium_reward(environment: Any) -> RewardFunction:
        """The reward function of a Gymnasium goal environment.

        Args:
            environment: one with a vectorised ``compute_reward(achieved, desired, info)``, such
                as those of Gymnasium-Robotics.
        """
        environment = getattr(environment, "unwrapped", environment)
        if not hasattr(environment, "compute_reward"):
            raise TypeError(
                f"{type(environment).__name__} has no compute_reward(achieved, desired, info): "
                "hindsight needs an environment with goals, such as FetchReach-v4."
            )

        def reward_fn(achieved: Tensor, desired: Tensor) -> Tensor:
            goals = (achieved.cpu().numpy(), desired.cpu().numpy())
            return torch.as_tensor(environment.compute_reward(*goals, {}))

        return reward_fn

    def _init(self) -> None:
        if self._initialized:
            return
        super()._init()
        problem = None
        if self._storage.ndim != 1:
            problem = (
                f"a storage of one dimension, got ndim={self._storage.ndim}: flatten the data. "
                "Trajectory numbers keep environments apart."
            )
        elif not isinstance(self._writer, RoundRobinWriter):
            problem = (
                f"a writer that overwrites the oldest data, got {type(self._writer).__name__}: "
                "leave out `writer=` or pass a TensorDictRoundRobinWriter."
            )
        if problem:
            self._initialized = False
            raise ValueError(f"HindsightReplayBuffer needs {problem}")

    @property
    def episode_index(self) -> EpisodeIndex:
        """The index of the episodes, in step with the storage.

        It follows from storage and writer, so that whoever saves those need not save it.
        """
        self._init()
        with self._replay_lock, self._write_lock:
            self._follow_writes()
            return self._episode_index

    @pin_memory_output
    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        # TorchRL leaves the lock before it applies the transforms, and with it any chance to
        # relabel consistent data that no transform has seen yet.
        with self._in_step():
            index, info = self._sampler.sample(self._storage, batch_size)
            info["index"] = index
            if self._writer.tracks_generations:
                info["index_generation"] = self._writer.generations_of(index)
            data = self._read(index, None)
        if self._transform is not None and len(self._transform):
            data = self._transform(data)
        return data, info

    def _read(self, index: Any, keys: Sequence[NestedKey] | None) -> TensorDictBase:
        data = super()._read(index, keys)
        if self.her_ratio == 0:
            return data
        self._follow_writes()
        slots = flat_slots(index, self._storage)
        # Drawn whatever the keys: what is read does not change what is drawn next.
        chosen, place = torch.rand(
            2, len(slots), dtype=torch.float64, generator=self._rng, device="cpu"
        ).numpy()
        rows = np.flatnonzero(chosen < self.her_ratio)
        if len(rows) == 0:
            return data
        goal_slots = self._episode_index.draw(slots[rows], place[rows], self.strategy)
        return self._relabel(data, slots[rows], torch.from_numpy(rows), goal_slots)

    def _relabel(
        self, data: TensorDictBase, slots: np.ndarray, rows: Tensor, goal_slots: np.ndarray
    ) -> TensorDictBase:
        reward = data.get(self.reward_key, None)
        goal_keys = [
            key for key in (self.goal_key, self._next_goal_key) if data.get(key, None) is not None
        ]
        if reward is None and not goal_keys:
            return data
        if isinstance(data, LazyStackedTensorDict):
            data = data.copy()  # its parts are the stored transitions themselves
        goals = self._column(self.achieved_goal_key, goal_slots)
        for key in goal_keys:
            _replace_rows(data, key, rows, goals)
        if reward is not None:
            achieved = data.get(self.achieved_goal_key, None)
            if achieved is None:
                achieved = self._column(self.achieved_goal_key, slots)
            else:
                achieved = achieved[rows]
            _replace_rows(data, self.reward_key, rows, self._rewards(achieved, goals))
        return data

    def _rewards(self, achieved: Tensor, desired: Tensor) -> Tensor:
        rewards = torch.as_tensor(self.reward_fn(achieved, desired))
        count = len(achieved)
        if rewards.shape not in ((count,), (count, 1)):
            raise ValueError(
                f"reward_fn returned the shape {list(rewards.shape)} for {count} goals of shape "
                f"{list(achieved.shape)}: it must return [{count}] or [{count}, 1]."
            )
        finite = rewards.isfinite().reshape(-1)
        if not finite.all():
            row = int(finite.int().argmin())
            raise ValueError(
                f"reward_fn returned {rewards[row].item()} for the achieved goal "
                f"{achieved[row].tolist()} and the desired goal {desired[row].tolist()}: it must "
                "return finite numbers. Check the stored goals."
            )
        return rewards

    def _column(self, key: NestedKey, slots: np.ndarray) -> Any:
        """One entry of some slots; other entries are not read where the storage allows it."""
        index = torch.from_numpy(slots)
        if isinstance(self._storage, TensorStorage):
            column = self._storage._storage.get(key, None)
            return None if column is None else column.index_select(0, index.to(column.device))
        return super()._read(index, None).get(key, None)

    def _follow_writes(self) -> None:
        """Brings the index in step with storage and writer."""
        index, writer, length = self._episode_index, self._writer, len(self._storage)
        cursor, write_count = writer._cursor, writer._write_count
        written = write_count - index.write_count
        in_order = (index.cursor + written - cursor) % self._storage.max_size == 0
        if in_order and 0 < written < length and len(index):
            self._append((cursor - written + np.arange(written)) % length)
            index.write_count = write_count
            written = 0
        if not (in_order and written == 0 and len(index) == length):
            self._rebuild()

    def _rebuild(self) -> None:
        index, writer, length = self._episode_index, self._writer, len(self._storage)
        index.clear()
        if length:
            self._check_entries()
            # The cursor stands before the oldest slot, or after the newest of a part-filled ring.
            self._append((writer._cursor + np.arange(length)) % length)
        # A new writer on stored data starts from 0, wherever they end.
        index.cursor, index.write_count = writer._cursor, writer._write_count

    def _append(self, slots: np.ndarray) -> None:
        done = self._column(self.done_key, slots)
        trajectory = self._column(self.trajectory_key, slots)
        if trajectory is None:
            numbers: np.ndarray = np.zeros(len(slots), np.int64)
        else:
            numbers = trajectory.reshape(-1).cpu().numpy().astype(np.int64, copy=False)
        flags = done.reshape(len(slots), -1).any(-1).cpu().numpy()
        self._episode_index.append(slots, numbers, flags)

    def _check_entries(self) -> None:
        row = super()._read(torch.zeros(1, dtype=torch.int64), None)
        names = ["goal_key", "achieved_goal_key", "reward_key", "done_key"]
        if self.shared:  # and written by processes that take turns within episodes
            names.append("trajectory_key")
        entries = {name: row.get(getattr(self, name), None) for name in names}
        missing = [name for name, entry in entries.items() if entry is None]
        if missing:
            name, key = missing[0], getattr(self, missing[0])
            stored = ", ".join(sorted(map(str, row.keys(True, True))))
            raise ValueError(
                f"The stored transitions have no entry {key!r}, only {stored}. Store it, or name "
                f"another by `{name}=`."
            )
        goal, achieved = entries["goal_key"], entries["achieved_goal_key"]
        if goal.shape != achieved.shape:
            raise ValueError(
                f"{self.goal_key!r} has the shape {list(goal.shape[1:])} and "
                f"{self.achieved_goal_key!r} has {list(achieved.shape[1:])}: a goal must have the "
                "shape of what can be achieved."
            )
        if entries["reward_key"].numel() != 1:
            raise ValueError(
                f"{self.reward_key!r} has the shape {list(entries['reward_key'].shape[1:])}: "
                "hindsight needs one reward per transition."
            )

    def empty(self, empty_write_count: bool = True) -> None:
        """Empties the buffer, drops prefetched batches and resets samplers and episodes."""
        super().empty(empty_write_count=empty_write_count)
        self._forget_episodes()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state."""
        try:
            super().load_state_dict(state_dict)
        finally:
            self._forget_episodes()

    def loads(self, path: str | Path) -> None:
        """Loads what :meth:`dumps` saved."""
        try:
            super().loads(path)
        finally:
            self._forget_episodes()

    def _forget_episodes(self) -> None:
        with self._replay_lock:
            self._episode_index.clear()


def _replace_rows(data: TensorDictBase, key: NestedKey, rows: Tensor, values: Tensor) -> None:
    old = data.get(key)
    values = values.reshape(len(rows), *old.shape[1:]).to(old.device, old.dtype)
    data.set(key, old.index_copy(0, rows.to(old.device), values))
