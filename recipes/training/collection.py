"""Collecting transitions, one for every step of a run, with TorchRL's collectors."""

from __future__ import annotations

from typing import Any, Protocol

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import GymWrapper

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.fast import Backend
from vmfer_recipes.training.environments import environment_state, load_environment_state
from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.options import Config
from vmfer_recipes.training.perception import Perception

__all__ = ["StepCount", "TransitionCollector", "kept", "make_collector"]

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
    backend: Backend,
) -> AnyCollector:
    """The collector that ``collector=`` asks for."""
    if cfg.collector.kind == "single":
        return TransitionCollector(env, policy, perception, buffer, cfg, backend)
    if cfg.collector.kind == "ray":
        from vmfer_recipes.training.ray_workers import RayWorkers

        return RayWorkers(policy, buffer, cfg)
    from vmfer_recipes.training.workers import Workers

    return Workers(policy, buffer, cfg, backend)


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
        cfg: says how many random steps come first.
        backend: says by which collector.
    """

    def __init__(
        self,
        env: GymWrapper,
        policy: TensorDictModuleBase,
        perception: Perception,
        buffer: ActorCriticReplayBuffer,
        cfg: Config,
        backend: Backend,
    ) -> None:
        self._env = env
        self._perception = perception
        self._buffer = buffer
        devices = {"env_device": "cpu", "storing_device": "cpu", "policy_device": cfg.device}
        self._collector = backend.collector(
            env,
            policy,
            frames_per_batch=1,
            total_frames=-1,
            init_random_frames=cfg.init_random_frames,
            postproc=kept,
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
            return next(self._iterator)
        except UserError as error:
            raise UserError(f"At step {self._collector._frames + 1}: {error}") from error

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
