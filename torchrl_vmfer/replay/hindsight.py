"""Replay buffer with hindsight relabeling for the actor and the critics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NestedKey, TensorDictBase, unravel_key
from torch import Tensor

from torchrl_vmfer import arguments
from torchrl_vmfer.replay.episode_index import Strategy
from torchrl_vmfer.replay.episodes import NStepReplayBuffer
from torchrl_vmfer.samplers.distributions import flat_slots

RewardFunction = Callable[[Tensor, Tensor], Tensor]


def _gymnasium_reward(environment: Any, achieved: Tensor, desired: Tensor) -> Tensor:
    goals = (achieved.cpu().numpy(), desired.cpu().numpy())
    return torch.as_tensor(environment.compute_reward(*goals, {}))


class HindsightReplayBuffer(NStepReplayBuffer):
    """An :class:`~torchrl_vmfer.NStepReplayBuffer` with hindsight relabeling.

    Each transition that the critics or the actor sample is relabeled with probability
    ``her_ratio``: its goal is replaced by one that was achieved in the same episode (Andrychowicz
    et al. 2017), and its reward is recomputed. The storage keeps the original data. Buffer
    transforms see the new goals. ``done`` and ``terminated`` are unchanged: reaching a goal
    does not end an episode.

    Goals come from the steps in the buffer, including those of unfinished episodes. An episode ends
    with a step that is done, or before a step of the same trajectory that does not start where the
    step before it ended, such as the first step of a restarted collector. The achieved goals of the
    two steps are compared, or, if these are not stored, the observations: store consecutive steps.

    An index of the episodes is updated at each write, so the cost of sampling is independent of the
    buffer size. It is rebuilt from the stored data after a load, and after changes that bypass
    ``add`` and ``extend``, such as ``buffer[index] = data`` in a buffer that no other process
    shares.

    Keyword Args:
        reward_fn: returns the rewards ``[n]`` or ``[n, 1]`` for achieved goals ``[n, *goal]`` and
            desired goals ``[n, *goal]``. :meth:`gymnasium_reward` makes one from an environment.
        her_ratio: the probability of relabeling a row, independent of other rows.
        strategy: the goals used for relabeling: ``"future"``, those achieved at the same step or
            later; ``"final"``, the last one; ``"episode"``, any goal of the episode.
        goal_key: the desired goal. ``("next", goal_key)`` is relabeled too if it is stored.
        achieved_goal_key: the achieved goal, which is also the first argument of ``reward_fn``.
        **kwargs: as in :class:`~torchrl_vmfer.NStepReplayBuffer`. With ``n_step``, the rewards of
            all steps are those of the new goal.

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

    def __init__(
        self,
        *,
        reward_fn: RewardFunction,
        her_ratio: float = arguments.HER_RATIO.default,
        strategy: Strategy = arguments.STRATEGY.default,
        goal_key: NestedKey = "desired_goal",
        achieved_goal_key: NestedKey = ("next", "achieved_goal"),
        **kwargs: Any,
    ) -> None:
        if not callable(reward_fn):
            raise TypeError(
                f"reward_fn must be a function of achieved and desired goals, got {reward_fn!r}. "
                "For a Gymnasium environment pass HindsightReplayBuffer.gymnasium_reward(env)."
            )
        arguments.HER_RATIO.check("her_ratio", her_ratio)
        arguments.STRATEGY.check("strategy", strategy)
        self.reward_fn = reward_fn
        self.her_ratio = her_ratio
        self.strategy: Strategy = strategy
        self.goal_key = unravel_key(goal_key)
        self.achieved_goal_key = unravel_key(achieved_goal_key)
        self._next_goal_key = unravel_key(("next", self.goal_key))
        achieved = self.achieved_goal_key
        if isinstance(achieved, tuple) and achieved[0] == "next":
            achieved = unravel_key(achieved[1:])
        # An episode is continued by the step that starts in its last state.
        self._state_keys = (achieved, "observation")
        super().__init__(**kwargs)

    @staticmethod
    def gymnasium_reward(environment: Any) -> RewardFunction:
        """The reward function of a Gymnasium environment with goals.

        The environment has a vectorized ``compute_reward(achieved, desired, info)``, as those of
        Gymnasium-Robotics do.
        """
        environment = getattr(environment, "unwrapped", environment)
        if not hasattr(environment, "compute_reward"):
            raise TypeError(
                f"{type(environment).__name__} has no compute_reward(achieved, desired, info): "
                "hindsight relabeling requires an environment with goals, such as FetchReach-v4."
            )
        return partial(_gymnasium_reward, environment)  # can be pickled

    def read_rows(self, index: Any, keys: Sequence[NestedKey] | None) -> TensorDictBase:
        """Reads transitions and relabels them."""
        data = super().read_rows(index, keys)
        if self.her_ratio == 0:
            return data
        self._follow_writes()
        slots = flat_slots(index, self.storage)
        # Independent of the keys: the entries read do not affect later draws.
        chosen, place = torch.rand(
            2, len(slots), dtype=torch.float64, generator=self.generator, device="cpu"
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
            data = data.copy()  # its elements are the stored transitions themselves
        goals = self._column(self.achieved_goal_key, goal_slots)
        for key in goal_keys:
            _replace_rows(data, key, rows, goals)
        if reward is not None:
            windows, counts = self._windows(slots)
            achieved = self._column(self.achieved_goal_key, windows.reshape(-1))
            rewards = self._rewards(achieved, goals.repeat_interleave(self.n_step, 0))
            _replace_rows(data, self.reward_key, rows, self._summed(rewards, counts))
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

    def _entry_names(self) -> list[str]:
        return ["goal_key", "achieved_goal_key", *super()._entry_names()]

    def _check_shapes(self, entries: dict[str, Any]) -> None:
        goal, achieved = entries["goal_key"], entries["achieved_goal_key"]
        if goal.shape != achieved.shape:
            raise ValueError(
                f"{self.goal_key!r} has the shape {list(goal.shape[1:])}, but "
                f"{self.achieved_goal_key!r} has {list(achieved.shape[1:])}: desired and "
                "achieved goals must have the same shape."
            )
        super()._check_shapes(entries)


def _replace_rows(data: TensorDictBase, key: NestedKey, rows: Tensor, values: Tensor) -> None:
    old = data.get(key)
    values = values.reshape(len(rows), *old.shape[1:]).to(old.device, old.dtype)
    data.set(key, old.index_copy(0, rows.to(old.device), values))
