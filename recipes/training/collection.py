"""Collecting transitions one by one with TorchRL's collector."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import set_exploration_type

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
        cfg: says how many random steps come first, and whether to take the short way.
    """

    def __init__(self, env: GymWrapper, policy: TensorDictModuleBase, cfg: DictConfig) -> None:
        self._env = env
        collector = _DirectCollector if cfg.fast else Collector
        self._collector = collector(
            env,
            policy,
            frames_per_batch=1,
            total_frames=-1,
            init_random_frames=cfg.init_random_frames,
            env_device="cpu",
            storing_device="cpu",
            policy_device=cfg.device,
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


class _DirectCollector(Collector):
    """TorchRL's collector with a shorter way to the simulator, for one step at a time.

    It yields the transitions of its parent, without checks of what a Gymnasium environment
    returns and without copies between steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, return_same_td=True)

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Acts once."""
        observation = self._carrier.get("observation")
        if self._should_use_random_frames():
            action = self.env.action_spec.rand()
        else:
            with set_exploration_type(self.exploration_type):
                policy_input = TensorDict({"observation": observation.to(self.policy_device)})
                action = self._wrapped_policy(policy_input).get("action").cpu()
        simulator = self.env._env
        following, reward, terminated, truncated, _ = simulator.step(action.numpy())
        following, is_over = torch.from_numpy(following), terminated or truncated
        after = {
            "observation": following.unsqueeze(0),
            "reward": torch.tensor([[reward]], dtype=torch.float32),
            "done": torch.tensor([[is_over]]),
            "terminated": torch.tensor([[terminated]]),
        }
        if is_over:
            following = torch.from_numpy(simulator.reset()[0])
        self._carrier.set("observation", following)
        return TensorDict(
            {
                "observation": observation.unsqueeze(0),
                "action": action.unsqueeze(0),
                "next": TensorDict(after, [1], device="cpu"),
            },
            [1],
            device="cpu",
        )
