"""Data collection with TorchRL's collectors: one transition for every step of a run."""

from __future__ import annotations

from typing import Any, Protocol

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.data import TensorDictReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.compiled.rows import extend
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.collection import _upstream
from vmfer_recipes.collection.direct import DirectCollector
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import RayCollectorConfig
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment
from vmfer_recipes.environments.state import (
    environment_state,
    load_environment_state,
    reseed_environment,
)

__all__ = [
    "ENVIRONMENT",
    "AnyCollector",
    "EpisodeReturns",
    "StepCount",
    "TransitionCollector",
    "kept",
    "make_collector",
]

# The number of the environment that a transition comes from, stored if hindsight needs it.
ENVIRONMENT = "environment"

# A time limit sets `done` but not `terminated`, and losses bootstrap unless `terminated`. Goals
# are stored if the environment has them.
_KEPT = (
    *(ENVIRONMENT, "observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


def kept(transitions: TensorDictBase) -> TensorDictBase:
    """Selects the entries of transitions to store."""
    return transitions.select(*_KEPT, strict=False)


class EpisodeReturns:
    """Returns and lengths of the training episodes that have ended since they were last read.

    Args:
        num_envs: the number of environments, whose episodes run side by side.

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
            self._returns[environment], self._lengths[environment] = 0.0, 0

    def pop(self) -> dict[str, float]:
        """The means over the ended episodes and their number, or nothing. Then forgets them."""
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
        """The running episodes, and the ended ones that were not read."""
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "ended": list(self._ended),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episodes."""
        self._returns, self._lengths = list(state["returns"]), list(state["lengths"])
        self._ended = [(total, length) for total, length in state["ended"]]


class AnyCollector(Protocol):
    """A collector that fills the buffer of a recipe.

    Attributes:
        episodes: the returns of the training episodes, for ``train.csv``.
    """

    episodes: EpisodeReturns

    def collect(self) -> None:
        """Returns when the buffer has received one transition for every call so far."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the collector for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state."""


def make_collector(
    env: Environment,
    policy: TensorDictModuleBase,
    observations: Observations,
    buffer: ActorCriticReplayBuffer,
    cfg: TrainingConfig,
) -> AnyCollector:
    """Makes the collector selected by ``collector=`` and ``num_envs=``."""
    # Imported here: the other collectors build on this module.
    if cfg.num_envs > 1:
        from vmfer_recipes.collection.vectorized import VectorCollector

        return VectorCollector(env, policy, observations, buffer, cfg)
    if cfg.collector.is_single:
        return TransitionCollector(env, policy, observations, buffer, cfg)
    if isinstance(cfg.collector, RayCollectorConfig):
        from vmfer_recipes.collection.ray_workers import RayWorkers

        return RayWorkers(policy, buffer, cfg)
    from vmfer_recipes.collection.workers import Workers

    return Workers(policy, buffer, cfg)


class StepCount:
    """The state of collectors with worker processes, whose episodes cannot be saved.

    Attributes:
        episodes: stays empty, because transitions go from the workers to the buffer.
    """

    _steps = 0
    episodes = EpisodeReturns()

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the count."""
        self._steps = state["steps"]


class TransitionCollector:
    """Collects one transition at a time, and can be saved and restored within an episode.

    Args:
        env: the environment.
        policy: the exploring policy; it is used directly, not copied.
        observations: its statistics are updated with every transition.
        buffer: receives every transition.
        cfg: defines the number of initial random steps, and whether to collect fast.

    Attributes:
        episodes: the returns of the training episodes.
    """

    def __init__(
        self,
        env: Environment,
        policy: TensorDictModuleBase,
        observations: Observations,
        buffer: ActorCriticReplayBuffer,
        cfg: TrainingConfig,
    ) -> None:
        self._env = env
        self._observations = observations
        self._buffer = buffer
        self._extend = extend if cfg.fast else TensorDictReplayBuffer.extend
        self._steps = 0
        self.episodes = EpisodeReturns()
        devices = {"env_device": "cpu", "storing_device": "cpu", "policy_device": cfg.device}
        self._collector = (DirectCollector if cfg.fast else Collector)(
            env,
            policy,
            frames_per_batch=1,
            total_frames=-1,
            init_random_frames=cfg.init_random_frames,
            postproc=kept,
            track_traj_ids=False,
            auto_register_policy_transforms=False,
            **({} if cfg.device == "cpu" else devices),
        )
        self._iterator = iter(self._collector)

    def collect(self) -> None:
        """Takes one environment step and stores the transition."""
        transition = self.next()
        if self._observations.has_effect:
            self._observations.learn(transition)
        self._extend(self._buffer, transition)
        outcome = transition.get("next")
        self.episodes.add(outcome.get("reward").item(), outcome.get("done").item())

    def next(self) -> TensorDictBase:
        """Takes one step. Returns the transition as a batch of one, valid until the next call."""
        try:
            transition = next(self._iterator)
        except UserError as error:
            raise UserError(f"At step {self._steps + 1}: {error}") from error
        self._steps += 1
        return transition

    def state_dict(self) -> dict[str, Any]:
        """The state of the environment within its episode, and the number of steps."""
        return {
            "environment": environment_state(self._env),
            "carrier": _upstream.carried(self._collector).to_dict(),
            "frames": self._steps,
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episode, or in a new one if its state could not be saved."""
        self._steps = state["frames"]
        self._collector.load_state_dict({"frames": self._steps, "iter": self._steps}, strict=False)
        carrier, self.episodes = _upstream.carried(self._collector), EpisodeReturns()
        if load_environment_state(self._env, state["environment"]):
            carrier.update(TensorDict(state["carrier"]))
            self.episodes.load_state_dict(state["episodes"])
        else:
            carrier.update(self._env.reset())

    def reseed(self, seed: int) -> None:
        """Seeds the random generators of the environment. Its episode continues."""
        reseed_environment(self._env, seed)
