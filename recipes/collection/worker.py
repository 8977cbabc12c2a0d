"""A worker: environments that are stepped with an exploring policy, and what it returns."""

from __future__ import annotations

import importlib.metadata
import pickle
import platform
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type

from torchrl_vmfer.networks import drawn_action
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, entries, kept, make_environment, tensors
from vmfer_recipes.environments.state import (
    derived_seed,
    environment_state,
    load_environment_state,
    seed_generators,
)

_PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "gymnasium", "mujoco")


class Explorer(nn.Module):
    """The exploration of an actor: noise on deterministic actions, or draws of a Gaussian one.

    It depends on ``exploration_type()``: noise is added only if the type is ``RANDOM`` or not set,
    as in TorchRL's ``AdditiveGaussianModule``. Actions are drawn only if it is ``RANDOM``.
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


class EpisodeReturns:
    """Returns and lengths of the training episodes that have ended since they were last read.

    Args:
        num_envs: the number of environments, whose episodes run in parallel.

    Attributes:
        ended: the returns and lengths of the ended episodes.
        logged: the sums and numbers of the values of ``log_info``, by column. Columns are kept.

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
        self.ended: list[tuple[float, int]] = []
        self.logged: dict[str, tuple[float, int]] = {}

    def log(self, sums: dict[str, tuple[float, int]]) -> None:
        """Adds sums and numbers of the values of further steps."""
        for name, (total, count) in sums.items():
            before, number = self.logged.get(name, (0.0, 0))
            self.logged[name] = before + total, number + count

    def add(self, reward: float, is_over: bool, environment: int = 0) -> None:
        """Adds one step."""
        self._returns[environment] += reward
        self._lengths[environment] += 1
        if is_over:
            self.ended.append((self._returns[environment], self._lengths[environment]))
            self._returns[environment], self._lengths[environment] = 0.0, 0

    def take(self) -> tuple[list[tuple[float, int]], dict[str, tuple[float, int]]]:
        """Returns ``ended`` and ``logged``, and clears them."""
        ended, logged = self.ended, self.logged
        self.ended, self.logged = [], dict.fromkeys(logged, (0.0, 0))
        return ended, logged

    def pop(self) -> dict[str, float]:
        """Returns means over steps and episodes, and the number of episodes, and clears them."""
        ended, logged = self.take()
        means = {name: total / count for name, (total, count) in logged.items() if count}
        if not ended:
            return means
        returns, lengths = zip(*ended, strict=True)
        return means | {
            "episode_return": sum(returns) / len(returns),
            "episode_length": sum(lengths) / len(lengths),
            "num_episodes": len(lengths),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the running episodes, and the ended ones that have not been read."""
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "ended": list(self.ended),
            **({"logged": dict(self.logged)} if self.logged else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episodes."""
        self._returns, self._lengths = list(state["returns"]), list(state["lengths"])
        self.ended = [(total, length) for total, length in state["ended"]]
        self.logged = {name: (each[0], each[1]) for name, each in state.get("logged", {}).items()}


class Worker:
    """Steps environments with a policy. Its state can be saved in the middle of an episode.

    Args:
        cfg: the configuration of the run.
        policy: the exploring policy. With one environment, its input has no batch dimension.
        envs: the environments, which the constructor resets.
    """

    def __init__(
        self, cfg: TrainingConfig, policy: TensorDictModuleBase, envs: list[Environment]
    ) -> None:
        self._cfg, self._policy, self._envs = cfg, policy, envs
        self._map: Any = ThreadPoolExecutor(len(envs)).map if cfg.env.blocking else map
        self._batch = cache(partial(_batch, envs[0]))
        self._seen = [entries(env.simulator.reset()[0]) for env in envs]
        self.episodes = EpisodeReturns(len(envs))

    @torch.no_grad()
    def collect(self, rounds: int, first: int) -> TensorDictBase:
        """Takes steps in all environments, one round after the other.

        Args:
            rounds: the number of steps of each environment.
            first: the step of the run to which the first transition belongs.

        Returns:
            the transitions, valid until the next call.
        """
        count = len(self._envs)
        transitions, (now, following) = self._batch(rounds * count)
        for row in range(rounds * count):
            number = row % count
            if number == 0:
                num_random = self._cfg.init_random_frames - (first + row - 1)
                actions = self._act(min(max(num_random, 0), count))
                outcomes = self._map(_advance, self._envs, actions)
            action, seen = actions[number], self._seen[number]
            for key, column in now:
                column[row] = action if key == "action" else seen[key]
            try:
                outcome, self._seen[number], info = next(outcomes)
                self._log(info, outcome)
            except UserError as error:
                raise UserError(f"At step {first + row}: {error}") from error
            for key, column in following:
                column[row] = outcome[key]
            reward = float(np.float32(outcome["reward"]))  # as stored
            self.episodes.add(reward, outcome["done"], number)
        return transitions

    def _log(self, info: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Adds the values of ``log_info`` to those of earlier steps."""
        for name in self._cfg.log_info:
            first, _, place = name.partition(".")
            seen = outcome["observation"]
            is_component = first == "observation" and place.isdigit()
            if is_component and int(place) >= len(seen):
                raise UserError(
                    f"log_info={name} does not exist: the observation ends with "
                    f"observation.{len(seen) - 1}."
                )
            column = name if is_component else f"info.{name}"
            value = seen[int(place)] if is_component else info.get(name)
            if value is not None:
                if np.size(value) != 1 or np.asarray(value).dtype.kind not in "biuf":
                    raise UserError(f"log_info={name} is {value!r}, not a number: leave it out.")
                self.episodes.log({column: (float(np.asarray(value).item()), 1)})
            elif outcome["done"] and column not in self.episodes.logged:
                raise UserError(
                    f"log_info={name} was not in the info of an episode, which has "
                    f"{', '.join(info) or 'no entries'}: use one of these, or observation.<number>."
                )

    def _act(self, num_random: int) -> list[np.ndarray]:
        """Returns one action for each environment: random actions first, then the policy's."""
        actions = [self._envs[0].action_spec.rand() for _ in range(num_random)]
        if num_random < len(self._envs):
            with set_exploration_type(ExplorationType.RANDOM):
                actions += self.choose(num_random)
        return [action.numpy() for action in actions]

    def choose(self, first: int = 0) -> list[Tensor]:
        """Returns the policy's actions for all environments from a number on."""
        seen, policy = self._seen[first:], self._policy
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
            "episodes": self.episodes.state_dict(),
            "environments": [environment_state(env) for env in self._envs],
            "seen": [tensors(seen) for seen in self._seen],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episodes, unless some environment could not be saved."""
        if all("saved" in each for each in state["environments"]):
            for env, saved in zip(self._envs, state["environments"], strict=True):
                load_environment_state(env, saved)
            seen = state["seen"]
            self._seen = [{key: value.numpy() for key, value in each.items()} for each in seen]
            self.episodes.load_state_dict(state["episodes"])


def _batch(env: Environment, count: int) -> tuple[TensorDictBase, list[Any]]:
    """Returns a batch of transitions to fill, and its columns as NumPy arrays, for speed."""
    row = kept(env.fake_tensordict())
    batch = row.unsqueeze(0).expand(count, *row.shape).contiguous()
    parts = (batch.exclude("next"), batch["next"])
    return batch, [[(key, value.numpy()) for key, value in part.items()] for part in parts]


def _advance(
    env: Environment, action: np.ndarray
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
    """Takes a step, and starts the next episode. Returns outcome, new observation and info."""
    # A simulator may change the action in place.
    after, reward, terminated, truncated, info = env.simulator.step(action.copy())
    is_over = terminated or truncated
    outcome = {"reward": reward, "done": is_over, "terminated": terminated, **entries(after)}
    return outcome, entries(env.simulator.reset()[0]) if is_over else entries(after), info


class Request(NamedTuple):
    """A request for a chunk, which depends only on it, the weights and the environments."""

    number: int  # the number of the chunk among those of the worker
    first: int  # the step of the run to which the first transition belongs
    rounds: int


class Chunk(NamedTuple):
    """The transitions that a worker returns, as columns."""

    columns: dict[Any, np.ndarray]
    episodes: list[tuple[float, int]]  # the returns and lengths of those that have ended
    logged: dict[str, tuple[float, int]]  # as in `EpisodeReturns`
    state: dict[str, Any] | None  # the worker's state afterwards, with `collector.sync=true`


class LostError(Exception):
    """Reported instead of a chunk if the process of a worker has ended."""


def reported(error: Exception, worker: int) -> UserError:
    """Converts the error of a worker to the one that the learner raises."""
    if isinstance(error, UserError):
        return error
    return UserError(f"Worker {worker} failed with {type(error).__name__}: {first_line(error)}")


def remote_worker(parts: bytes, number: int) -> Generator[Any, Any, None]:
    """Runs a worker in its own process.

    Args:
        parts: the configuration of the run and the exploring policy, on the CPU, pickled.
        number: the number of this worker.

    Yields:
        the versions of packages, and then a chunk for each request that is sent, together with the
        weights of the policy and, for the first request, the state of the environments, if any.
    """
    request, weights, state = yield versions()
    cfg, policy = pickle.loads(parts)
    torch.set_num_threads(1)
    torch.set_flush_denormal(cfg.fast)
    place = cfg.seed, number, request.number
    seeds = [derived_seed(*place, 1 + position) for position in range(cfg.num_envs)]
    envs = [make_environment(cfg.env, seed, cfg.replay.has_goals) for seed in seeds]
    worker = Worker(cfg, policy, envs)
    if state is not None:
        worker.load_state_dict(state)
    while True:
        for tensor, value in zip(policy.state_dict().values(), weights, strict=True):
            tensor.copy_(torch.tensor(value))
        # A chunk does not depend on the random numbers of earlier ones.
        seed_generators(derived_seed(cfg.seed, number, request.number))
        batch = worker.collect(request.rounds, request.first)
        columns = {key: value.numpy() for key, value in batch.items(True, True)}
        episodes = worker.episodes.take()
        chunk = Chunk(columns, *episodes, worker.state_dict() if cfg.collector.sync else None)
        request, weights, _ = yield chunk


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"Python": platform.python_version()} | packages
