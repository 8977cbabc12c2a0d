"""The transitions that a run stores, and the returns of its training episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict import TensorDictBase

# The number of the environment that a transition comes from, stored if hindsight replay needs it.
ENVIRONMENT = "environment"

# A time limit sets `done` but not `terminated`, and losses bootstrap unless `terminated` is set.
# Goals are stored if the environment has them.
_KEPT = (
    *("observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


def kept(transitions: TensorDictBase) -> TensorDictBase:
    """Selects the entries of transitions to store."""
    return transitions.select(*_KEPT, strict=False)


class EpisodeReturns:
    """Returns and lengths of the training episodes that have ended since they were last read.

    Args:
        num_envs: the number of environments, whose episodes run in parallel.

    Example:
        >>> episodes = EpisodeReturns()
        >>> episodes.add(1.0, is_over=False)
        >>> episodes.pop()
        {}
        >>> episodes.add(2.5, is_over=True)
        >>> episodes.pop()
        {'episode_return': 3.5, 'episode_length': 2.0, 'num_episodes': 1}
    """

    def __init__(self, num_envs: int = 1) -> None:
        self._returns = [0.0] * num_envs
        self._lengths = [0] * num_envs
        self._ended: list[tuple[float, int]] = []

    def add(self, reward: float, is_over: bool, environment: int = 0) -> None:
        """Adds one step."""
        self._returns[environment] += reward
        self._lengths[environment] += 1
        if is_over:
            self._ended.append((self._returns[environment], self._lengths[environment]))
            self.restart([environment])

    def restart(self, environments: Iterable[int]) -> None:
        """Starts new episodes, whether or not the last ones have ended."""
        for environment in environments:
            self._returns[environment], self._lengths[environment] = 0.0, 0

    def pop(self) -> dict[str, float]:
        """Returns the means over the ended episodes and their number, and forgets them."""
        if not self._ended:
            return {}
        returns, lengths = zip(*self._ended, strict=True)
        self._ended = []
        return {
            "episode_return": sum(returns) / len(returns),
            "episode_length": sum(lengths) / len(lengths),
            "num_episodes": len(lengths),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the running episodes, and the ended ones that have not been read."""
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "ended": list(self._ended),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episodes."""
        self._returns, self._lengths = list(state["returns"]), list(state["lengths"])
        self._ended = [(total, length) for total, length in state["ended"]]
