"""Data collection with several environments in the training process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.collection.collectors import ENVIRONMENT, EpisodeReturns, kept
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import (
    Environment,
    entries,
    make_environment,
    tensors,
)
from vmfer_recipes.environments.state import (
    environment_state,
    load_environment_state,
    reseed_environment,
)

__all__ = ["VectorCollector", "environment_seeds"]


def environment_seeds(seed: int, count: int) -> list[int]:
    """The seeds of a run's environments: its own seed, and others that no nearby run shares."""
    others = (np.random.SeedSequence([seed, number]) for number in range(1, count))
    return [seed, *(int(other.generate_state(1)[0] >> 1) for other in others)]


class VectorCollector:
    """Steps several environments in rounds: one call of the policy, then one step of each.

    A step of the run is one frame. The first step of a round collects the frames of the whole
    round, and the following ones find theirs in the buffer. The simulators are called directly:
    TorchRL's ``SerialEnv`` and Gymnasium's ``SyncVectorEnv`` take longer (see
    ``benchmarks/collectors.py``), and neither can be saved within an episode.

    Args:
        env: the first environment. The others are made from ``cfg``.
        policy: the exploring policy.
        observations: its statistics are updated with every transition.
        buffer: receives every transition.
        cfg: defines the number of environments and of initial random frames.

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
        goals = cfg.replay.kind == "her"
        seeds = environment_seeds(cfg.seed, cfg.num_envs)[1:]
        self._envs = [env, *(make_environment(cfg.env, seed, goals) for seed in seeds)]
        self.episodes = EpisodeReturns(len(self._envs))
        self._policy = policy
        self._observations = observations
        self._buffer = buffer
        self._init_random_frames = cfg.init_random_frames
        # Episodes of several environments alternate in the buffer: hindsight keeps them apart.
        number = torch.arange(len(self._envs)).unsqueeze(-1)
        self._labels = {ENVIRONMENT: number} if goals else {}
        self._frames = 0  # collected
        self._steps = 0  # steps of the run, at most `_frames`
        starts = [entries(each.simulator.reset()[0]) for each in self._envs]
        self._seen = {key: np.stack([each[key] for each in starts]) for key in starts[0]}

    def collect(self) -> None:
        """Takes one step in every environment, if all frames so far belong to earlier steps."""
        if self._steps == self._frames:
            self._take_round()
        self._steps += 1

    @torch.no_grad()
    def _take_round(self) -> None:
        count = len(self._envs)
        actions = self._act()
        # The observation after a step is that of the next one, unless an episode has ended.
        after = {key: np.empty_like(value) for key, value in self._seen.items()}
        seen = {key: np.empty_like(value) for key, value in self._seen.items()}
        rewards = np.empty((count, 1), np.float32)
        dones, terminations = np.empty((count, 1), bool), np.empty((count, 1), bool)
        for number, (env, action) in enumerate(zip(self._envs, actions.numpy(), strict=True)):
            try:
                observation, reward, terminated, truncated, _ = env.simulator.step(action)
                is_over = bool(terminated or truncated)
                start = env.simulator.reset()[0] if is_over else observation
            except UserError as error:
                raise UserError(f"At step {self._frames + number + 1}: {error}") from error
            for rows, value in ((after, observation), (seen, start)):
                for key, entry in entries(value).items():
                    rows[key][number] = entry
            rewards[number], dones[number], terminations[number] = reward, is_over, terminated
            self.episodes.add(float(reward), is_over, number)
        outcome = {"reward": rewards, "done": dones, "terminated": terminations}
        following = tensors(after | outcome)
        data = {**self._labels, **tensors(self._seen), "action": actions, "next": following}
        transitions = kept(TensorDict(data, [count]))
        self._observations.learn(transitions)
        self._buffer.extend(transitions)
        self._seen = seen
        self._frames += count

    def _act(self) -> Tensor:
        """The actions of a round: those of the initial random frames first."""
        count = len(self._envs)
        random = min(max(self._init_random_frames - self._frames, 0), count)
        spec = self._envs[0].action_spec
        actions = [spec.rand().unsqueeze(0) for _ in range(random)]
        if random < count:
            seen = TensorDict(tensors(self._seen), [count])[random:]
            with set_exploration_type(ExplorationType.RANDOM):
                actions.append(self._policy(seen).get("action").cpu())
        return torch.cat(actions)

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment, and the position in the round."""
        return {
            "environments": [environment_state(env) for env in self._envs],
            "seen": tensors(self._seen),
            "frames": self._frames,
            "steps": self._steps,
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the round, and within the episodes if their state could be saved."""
        if not any("unsaved" in saved for saved in state["environments"]):
            for env, saved in zip(self._envs, state["environments"], strict=True):
                load_environment_state(env, saved)
            self._seen = {key: value.numpy() for key, value in state["seen"].items()}
            self.episodes.load_state_dict(state["episodes"])
        self._frames, self._steps = state["frames"], state["steps"]

    def reseed(self, seed: int) -> None:
        """Seeds the random generators of all environments. Their episodes continue."""
        for env, number in zip(self._envs, environment_seeds(seed, len(self._envs)), strict=True):
            reseed_environment(env, number)
