"""Collecting transitions, one for every step of a run, with TorchRL's collectors."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import set_exploration_type

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.training.environments import environment_state, load_environment_state, tensors
from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.options import Config
from vmfer_recipes.training.perception import Perception

__all__ = ["DirectCollector", "StepCount", "TransitionCollector", "kept", "make_collector"]

# What is kept of a transition. A time limit sets `done` but not `terminated`, and losses
# bootstrap unless `terminated`. Goals are there if the environment has some.
_KEPT = (
    *("observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


def kept(transitions: TensorDictBase) -> TensorDictBase:
    """What is stored of transitions."""
    return transitions.select(*_KEPT, strict=False)


class AnyCollector(Protocol):
    """What fills the buffer of a recipe."""

    def collect(self) -> None:
        """Sees to it that the buffer has got a transition for every call."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_collector(
    env: GymWrapper,
    policy: TensorDictModuleBase,
    perception: Perception,
    buffer: ActorCriticReplayBuffer,
    cfg: Config,
) -> AnyCollector:
    """The collector that ``collector=`` asks for."""
    if cfg.collector.kind == "single":
        return TransitionCollector(env, policy, perception, buffer, cfg)
    if cfg.collector.kind == "ray":
        from vmfer_recipes.training.ray_workers import RayWorkers

        return RayWorkers(policy, buffer, cfg)
    from vmfer_recipes.training.workers import Workers

    return Workers(policy, buffer, cfg)


class StepCount:
    """The state of collectors with workers: what these are doing cannot be saved."""

    _steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on counting."""
        self._steps = state["steps"]


class TransitionCollector:
    """Collects one transition at a time, and can stop and go on within an episode.

    Args:
        env: the environment.
        policy: the exploring policy; it is followed, not copied.
        perception: learns from every transition.
        buffer: gets every transition.
        cfg: says how many random steps come first, and whether to take the short way.
    """

    def __init__(
        self,
        env: GymWrapper,
        policy: TensorDictModuleBase,
        perception: Perception,
        buffer: ActorCriticReplayBuffer,
        cfg: Config,
    ) -> None:
        self._env = env
        self._perception = perception
        self._buffer = buffer
        self._is_direct = cfg.fast
        devices = {"env_device": "cpu", "storing_device": "cpu", "policy_device": cfg.device}
        self._collector = (DirectCollector if cfg.fast else Collector)(
            env,
            policy,
            frames_per_batch=1,
            total_frames=-1,
            init_random_frames=cfg.init_random_frames,
            auto_register_policy_transforms=False,
            **({} if cfg.device == "cpu" else devices),
        )
        self._iterator = iter(self._collector)

    def collect(self) -> None:
        """Acts once, and stores the transition."""
        transition = self.next()
        self._perception.learn(transition)
        self._buffer.extend(transition)

    def next(self) -> TensorDictBase:
        """Acts once, and returns the transition as a batch of one, valid until the next call."""
        try:
            transition = next(self._iterator)
        except UserError as error:
            raise UserError(f"At step {self._collector._frames + 1}: {error}") from error
        return transition if self._is_direct else kept(transition)

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


class DirectCollector(Collector):
    """TorchRL's collector with a shorter way to the simulator, for one step at a time.

    It yields the transitions of its parent, without checks of what a Gymnasium environment
    returns and without copies between steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"return_same_td": True})

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Acts once."""
        before = {key: self._carrier.get(key) for key in self._observed}
        action = self._act(before)
        simulator = self.env._env
        after, reward, terminated, truncated, _ = simulator.step(action.numpy())
        is_over = terminated or truncated
        following = tensors(after)
        outcome = {"reward": reward, "done": is_over, "terminated": terminated}
        for key, column in self._columns["now"].items():
            column[0] = (action if key == "action" else before[key]).numpy()
        for key, column in self._columns["next"].items():
            column[0] = outcome[key] if key in outcome else following[key].numpy()
        for key, value in (tensors(simulator.reset()[0]) if is_over else following).items():
            self._carrier.set(key, value)
        return self._transition

    @cached_property
    def _observed(self) -> list[str]:
        return list(self.env.observation_spec.keys())

    @cached_property
    def _transition(self) -> TensorDict:
        """The transition that every step fills anew."""
        return kept(self.env.fake_tensordict()).unsqueeze(0).contiguous()

    @cached_property
    def _columns(self) -> dict[str, dict[str, np.ndarray]]:
        """Its memory, entry by entry: for a few numbers NumPy is faster than PyTorch."""
        now = self._transition.exclude("next")
        return {
            name: {key: value.numpy() for key, value in part.items()}
            for name, part in {"now": now, "next": self._transition["next"]}.items()
        }

    def _postproc(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def _act(self, observations: dict[str, Tensor]) -> Tensor:
        if self._should_use_random_frames():
            return self.env.action_spec.rand()
        inputs = observations
        if self.policy_device is not None:
            inputs = {key: value.to(self.policy_device) for key, value in inputs.items()}
        policy = self._wrapped_policy
        with set_exploration_type(self.exploration_type):
            if type(policy) is TensorDictModule:  # a function of tensors, which needs no TensorDict
                return policy.module(*(inputs[key] for key in policy.in_keys)).cpu()
            return policy(TensorDict(inputs)).get("action").cpu()
