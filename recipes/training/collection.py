"""Collecting transitions one by one with TorchRL's collector."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper

from training.environments import environment_state, load_environment_state

__all__ = ["TransitionCollector"]

# What a transition must hold. A time limit sets `done` but not `terminated`, and losses
# bootstrap unless `terminated`.
_KEYS = (
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    ("next", "done"),
    ("next", "terminated"),
)


class TransitionCollector:
    """Yields one transition at a time, and can stop and go on within an episode.

    Args:
        env: the environment.
        policy: the exploring policy; it is followed, not copied.
        cfg: says how many random steps come first.
    """

    def __init__(self, env: GymWrapper, policy: TensorDictModuleBase, cfg: DictConfig) -> None:
        self._env = env
        self._collector = Collector(
            env,
            policy,
            frames_per_batch=1,
            total_frames=-1,
            init_random_frames=cfg.init_random_frames,
            auto_register_policy_transforms=False,
        )
        self._iterator = iter(self._collector)

    def next(self) -> TensorDictBase:
        """Acts once, and returns the transition as a batch of one."""
        return next(self._iterator).select(*_KEYS)

    def state_dict(self) -> dict[str, Any]:
        """The environment in the middle of its episode, and the collector's counters."""
        return {
            "environment": environment_state(self._env),
            "carrier": self._collector._carrier.to_dict(),
            "frames": self._collector._frames,
            "trajectories": dict(self._collector._traj_pool.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on in the middle of the episode."""
        load_environment_state(self._env, state["environment"])
        self._collector._carrier.update(TensorDict(state["carrier"]))
        self._collector._frames = state["frames"]
        self._collector._traj_pool.load_state_dict(state["trajectories"])
