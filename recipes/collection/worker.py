"""A worker: environments that are stepped with one policy, and the transitions it returns."""

from __future__ import annotations

import importlib.metadata
import platform
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type

from torchrl_vmfer.networks import drawn_action
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, entries, make_environment, tensors
from vmfer_recipes.environments.state import (
    environment_state,
    load_environment_state,
    reseed_environment,
)

_PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "gymnasium", "mujoco", "torchrl_vmfer")

# The number of the environment that a transition comes from, stored if hindsight replay needs it.
ENVIRONMENT = "environment"

# A time limit sets `done` but not `terminated`, and losses bootstrap unless `terminated` is set.
# Goals are stored if the environment has them.
_KEPT = (
    *("observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


class Explorer(nn.Module):
    """The exploration of an actor: noise on deterministic actions, or draws of a Gaussian one.

    ``exploration_type()`` turns it off: noise unless it is ``RANDOM`` or not set, as in TorchRL's
    ``AdditiveGaussianModule``, and draws unless it is ``RANDOM``.
    """

    def __init__(self, network: Callable[[Tensor], Any], noise: float | None = None) -> None:
        super().__init__()
        self.network = network
        self.noise = noise

    def forward(self, observation: Tensor) -> Tensor:
        """Returns an action."""
        if self.noise is None:
            return drawn_action(*self.network(observation))
        action = self.network(observation)
        if exploration_type() not in (None, ExplorationType.RANDOM):
            return action
        return (action + torch.randn_like(action) * self.noise).clamp(-1, 1)


class Worker:
    """Steps environments with a policy. Its state can be saved in the middle of an episode.

    Args:
        envs: the environments, which the constructor resets.
        policy: the exploring policy. With one environment, its input has no batch dimension.
        is_blocking: whether the environments are stepped at the same time, each in a thread.
    """

    def __init__(
        self, envs: list[Environment], policy: TensorDictModuleBase, is_blocking: bool = False
    ) -> None:
        self._envs = envs
        self._policy = policy
        self._map: Any = ThreadPoolExecutor(len(envs)).map if is_blocking else map
        self._batches: dict[int, tuple[TensorDictBase, list[list[tuple[str, np.ndarray]]]]] = {}
        self._seen = [entries(env.simulator.reset()[0]) for env in envs]

    @torch.no_grad()
    def collect(self, rounds: int = 1, num_random: int = 0, first: int = 1) -> TensorDictBase:
        """Takes steps in all environments, one round after the other.

        Args:
            rounds: the number of steps of each environment.
            num_random: the number of transitions, from the first one on, with random actions.
            first: the step of the run to which the first transition belongs.

        Returns:
            the transitions, valid until the next call.
        """
        count = len(self._envs)
        transitions, (now, following) = self._batch(rounds * count)
        for row in range(rounds * count):
            number = row % count
            if number == 0:
                actions = self._act(min(max(num_random - row, 0), count))
                outcomes = self._map(_advance, self._envs, actions)
            action, seen = actions[number], self._seen[number]
            for key, column in now:
                column[row] = action if key == "action" else seen[key]
            try:
                outcome, self._seen[number] = next(outcomes)
            except UserError as error:
                raise UserError(f"At step {first + row}: {error}") from error
            for key, column in following:
                column[row] = outcome[key]
        return transitions

    def _batch(self, count: int) -> tuple[TensorDictBase, list[list[tuple[str, np.ndarray]]]]:
        """Returns a batch of transitions to fill, and its columns as NumPy arrays, for speed."""
        if count not in self._batches:
            row = kept(self._envs[0].fake_tensordict())
            batch = row.unsqueeze(0).expand(count, *row.shape).contiguous()
            parts = (batch.exclude("next"), batch["next"])
            columns = [[(key, value.numpy()) for key, value in part.items()] for part in parts]
            self._batches[count] = batch, columns
        return self._batches[count]

    def _act(self, num_random: int) -> list[np.ndarray]:
        """Returns one action for each environment: random actions first, then the policy's."""
        actions = [self._envs[0].action_spec.rand() for _ in range(num_random)]
        if num_random < len(self._envs):
            with set_exploration_type(ExplorationType.RANDOM):
                actions += self.choose(self._seen[num_random:])
        return [action.numpy() for action in actions]

    def choose(self, seen: list[dict[str, np.ndarray]] | None = None) -> list[Tensor]:
        """Returns the policy's actions for observations, by default those of all environments."""
        seen = self._seen if seen is None else seen
        policy = self._policy
        if len(self._envs) > 1:
            stacked = {key: np.stack([each[key] for each in seen]) for key in seen[0]}
            return list(policy(TensorDict(tensors(stacked), [len(seen)])).get("action").cpu())
        inputs = tensors(seen[0])
        if type(policy) is TensorDictModule:  # a function of tensors needs no TensorDict
            return [policy.module(*(inputs[key] for key in policy.in_keys)).cpu()]
        return [policy(TensorDict(inputs)).get("action").cpu()]

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the environments, and the observations they returned last."""
        return {
            "environments": [environment_state(env) for env in self._envs],
            "seen": [tensors(seen) for seen in self._seen],
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Resumes within the episodes, unless some environment could not be saved.

        Returns:
            whether the state was loaded.
        """
        if not is_whole(state):
            return False
        for env, saved in zip(self._envs, state["environments"], strict=True):
            load_environment_state(env, saved)
        self._seen = [{key: value.numpy() for key, value in seen.items()} for seen in state["seen"]]
        return True

    def reseed(self, seed: int) -> None:
        """Seeds the random generators of all environments. Their episodes continue."""
        seeds = environment_seeds(seed, len(self._envs))
        for env, number in zip(self._envs, seeds, strict=True):
            reseed_environment(env, number)


def _advance(env: Environment, action: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Takes a step, and starts the next episode. Returns the outcome and the new observation."""
    # A simulator may change the action in place.
    after, reward, terminated, truncated, _ = env.simulator.step(action.copy())
    is_over = terminated or truncated
    outcome = {"reward": reward, "done": is_over, "terminated": terminated, **entries(after)}
    return outcome, entries(env.simulator.reset()[0]) if is_over else entries(after)


def environment_seeds(seed: int, count: int) -> list[int]:
    """Returns the seeds of a run's environments: its own, and ones that similar runs do not use."""
    return [seed, *(_seed(seed, number) for number in range(1, count))]


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def is_whole(state: dict[str, Any] | None) -> bool:
    """Whether the state of a worker holds the states of all its environments."""
    return state is not None and all("saved" in each for each in state["environments"])


@dataclass(frozen=True)
class Request:
    """A request for a chunk, which depends only on it, the weights and the environments."""

    number: int  # the number of the chunk among those of the worker
    first: int  # the step of the run to which the first transition belongs
    rounds: int
    num_random: int
    version: int  # the version of the weights
    is_new: bool = False  # whether to start with new environments
    state: Any = None  # the state of the new environments; `None` for new episodes


@dataclass(frozen=True)
class Chunk:
    """The transitions that a worker returns, as columns."""

    columns: dict[Any, np.ndarray]
    version: int  # the version of the weights that chose the actions
    state: dict[str, Any] | None  # the worker's state afterwards, with `collector.sync=true`


class LostError(Exception):
    """Reported instead of a chunk if the process of a worker has ended and is being restarted."""


def reported(error: Exception, worker: int) -> UserError:
    """Converts the error of a worker to the one that the learner raises."""
    if isinstance(error, UserError):
        return error
    return UserError(f"Worker {worker} failed with {type(error).__name__}: {first_line(error)}")


class RemoteWorker:
    """The side of a worker that runs in its own process.

    Args:
        cfg: the configuration of the run.
        policy: the exploring policy, on the CPU.
        number: the number of this worker.
    """

    def __init__(self, cfg: TrainingConfig, policy: TensorDictModuleBase, number: int) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(cfg.fast)
        self._cfg, self._policy, self._number = cfg, policy, number
        self._worker: Worker | None = None

    def collect(self, request: Request, weights: list[np.ndarray] | None) -> Chunk:
        """Collects a chunk. The weights are those of the last request if ``weights=None``."""
        cfg, place = self._cfg, (self._cfg.seed, self._number, request.number)
        if request.is_new:
            seeds = [_seed(*place, 1 + number) for number in range(cfg.num_envs)]
            goals = cfg.replay.has_goals
            envs = [make_environment(cfg.env, seed, goals) for seed in seeds]
            self._worker = Worker(envs, self._policy, cfg.env.blocking)
            if request.state is not None:
                self._worker.load_state_dict(request.state)
        assert self._worker is not None
        if weights is not None:
            for tensor, value in zip(self._policy.state_dict().values(), weights, strict=True):
                tensor.copy_(torch.from_numpy(np.array(value)))
        # All three global generators are seeded, so that a chunk does not depend on earlier ones.
        seed = _seed(*place)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        batch = self._worker.collect(request.rounds, request.num_random, request.first)
        columns = {key: value.numpy() for key, value in batch.items(True, True)}
        is_sync = getattr(cfg.collector, "sync", False)
        return Chunk(columns, request.version, self._worker.state_dict() if is_sync else None)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # on a node that received the code
            found[package] = importlib.metadata.version(package)
    return found


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

    def restart(self, environments: list[int] | range) -> None:
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
