"""The preprocessing of the networks' inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase

from torchrl_vmfer.policies import Normalization
from vmfer_recipes.config.groups import HindsightReplayConfig
from vmfer_recipes.config.training import TrainingConfig


class Rewards(nn.Module):
    """Scales the rewards of the critics' batches.

    With ``normalize_rewards``, they are divided by the standard deviation of the discounted returns
    of all steps so far, as in Gymnasium's ``NormalizeReward``, but at the time of the update. The
    buffer stores raw rewards.
    """

    def __init__(self, cfg: TrainingConfig) -> None:
        super().__init__()
        self.scale, self.gamma = cfg.reward_scale, cfg.gamma
        self.statistics = None
        if cfg.normalize_rewards:
            count = getattr(cfg.collector, "num_workers", 1) * cfg.num_envs
            self.statistics = RunningStatistics(1, least_deviation=1e-4)
            self.returns: Tensor  # of the running episode of each environment
            self.register_buffer("returns", torch.zeros(count, dtype=torch.float64))

    def learn(self, transitions: TensorDictBase, first: int, count: int) -> None:
        """Updates the statistics with rounds of the environments ``first, first + 1, ...``."""
        if self.statistics is None:
            return
        returns, following = self.returns[first : first + count], transitions["next"]
        columns = (following[key].reshape(-1, count) for key in ("reward", "done"))
        for reward, done in zip(*columns, strict=True):
            returns.mul_(self.gamma).add_(reward)
            self.statistics.add(returns.unsqueeze(-1))
            returns[done] = 0

    def factor(self) -> float:
        """The current factor of rewards."""
        deviation = 1.0 if self.statistics is None else self.statistics.deviation().item()
        return self.scale / deviation

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Scales the rewards of a batch."""
        key = ("next", "reward")
        return batch.set(key, batch[key] * self.factor())


class Observations(TensorDictModuleBase):
    """Passes the stored observation to the networks, on their device.

    Attributes:
        has_effect: whether this module changes batches. If not, it need not be called.
        rewards: the scale of rewards; ``None`` if critics learn from raw rewards.
    """

    in_keys: list[str] = ["observation"]
    out_keys = ["observation"]

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.rewards: Rewards | None = None
        self.has_effect = self.device.type != "cpu"

    def stored_keys(self, entries: Sequence[str]) -> list[str]:
        """The stored entries from which a batch with some entries is made."""
        return [*self.in_keys, *(entry for entry in entries if entry not in self.out_keys)]

    def learn(self, transition: TensorDictBase) -> None:
        """Updates the statistics with collected transitions."""

    def normalization(self) -> Normalization | None:
        """The current normalization of the inputs of the networks; ``None`` for none."""
        return None

    def before(self, actor: TensorDictModuleBase) -> TensorDictModuleBase:
        """The policy that acts on raw observations of the environment."""
        return ObservingPolicy(self, actor) if self.has_effect else actor

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the observation and the next observation with the inputs of the networks."""
        # `to` takes time even if there is nothing to copy.
        return tensordict if self.device.type == "cpu" else tensordict.to(self.device)


class NormalizedObservations(Observations):
    """Normalizes samples by the mean and variance of all collected data, and clips them.

    The buffer stores raw data. (TorchRL's ``VecNormV2`` normalizes data once, at collection.) With
    goals, the normalized desired goal is appended to the observation. The statistics of goals
    include desired and achieved goals, since hindsight relabeling turns the latter into the former.
    """

    def __init__(
        self,
        observation: RunningStatistics,
        goal: RunningStatistics | None = None,
        *,
        clip: float,
        device: str,
    ) -> None:
        super().__init__(device)
        self.has_effect = True
        self.clip = clip
        self.observation = observation.to(device)
        self.goal = None if goal is None else goal.to(device)
        if goal is not None:
            self.in_keys = ["observation", "desired_goal"]

    def learn(self, transition: TensorDictBase) -> None:
        """Updates the statistics with collected transitions."""
        self.observation.add(transition["observation"])
        if self.goal is not None:
            self.goal.add(transition["desired_goal"])
            self.goal.add(transition["next", "achieved_goal"])

    def normalization(self) -> Normalization:
        """The current normalization of the inputs of the networks."""
        parts = [part for part in (self.observation, self.goal) if part is not None]
        mean = torch.cat([part.mean for part in parts])
        deviation = torch.cat([part.deviation() for part in parts])
        return Normalization(mean.float(), deviation.float(), self.clip)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the observation and the next observation with the inputs of the networks."""
        tensordict = super().forward(tensordict)
        goals = []
        if self.goal is not None:
            goals = [self.goal.normalized(tensordict.get("desired_goal"))]
        for key in ("observation", ("next", "observation")):
            raw = tensordict.get(key, None)
            if raw is not None:
                seen = torch.cat([self.observation.normalized(raw), *goals], -1)
                tensordict.set(key, seen.clamp(-self.clip, self.clip))
        return tensordict


class ObservingPolicy(TensorDictModuleBase):
    """Acts on the preprocessed observation and keeps the raw one in the TensorDict to store."""

    out_keys = ["action"]

    def __init__(self, observations: Observations, actor: TensorDictModuleBase) -> None:
        super().__init__()
        self.in_keys = observations.in_keys
        self.observations = observations
        self.actor = actor

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action."""
        seen = self.observations(tensordict.select(*self.in_keys))
        return tensordict.set("action", self.actor(seen).get("action"))


def on_cpu(policy: TensorDictModuleBase) -> TensorDictModuleBase:
    """Copies a policy to the CPU."""
    policy = copy.deepcopy(policy).to("cpu")
    for part in policy.modules():
        if isinstance(part, Observations):
            part.device = torch.device("cpu")
    return policy


class RunningStatistics(nn.Module):
    """The elementwise mean and variance of the vectors seen so far.

    For normalization, the standard deviation is at least ``least_deviation``, and
    ``added_deviation`` is added to it.
    """

    def __init__(
        self, size: int, least_deviation: float = 1e-2, added_deviation: float = 0.0
    ) -> None:
        super().__init__()
        self.least_deviation = least_deviation
        self.added_deviation = added_deviation
        self.count: Tensor
        self.mean: Tensor
        self.squares: Tensor  # the sum of squared deviations from the mean
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    def add(self, vectors: Tensor) -> None:
        """Adds vectors ``[n, size]`` (Chan's formula for merging two sets)."""
        vectors = vectors.detach().to(self.mean)
        count, mean = len(vectors), vectors.mean(0)
        shift, total = mean - self.mean, self.count + len(vectors)
        self.squares += (vectors - mean).square().sum(0)
        self.squares += shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count.copy_(total)

    def normalized(self, vectors: Tensor) -> Tensor:
        """Normalizes vectors with the mean and the standard deviation of those seen so far."""
        return (vectors - self.mean.to(vectors.dtype)) / self.deviation().to(vectors.dtype)

    def deviation(self) -> Tensor:
        """The standard deviation of the vectors seen so far, as used for normalization."""
        variance = self.squares / self.count.clamp(min=1)
        return variance.sqrt().clamp(min=self.least_deviation) + self.added_deviation


def make_observations(env: EnvBase, cfg: TrainingConfig) -> Observations:
    """The observations and rewards that ``replay=`` and the keys for them require."""
    observations = _make_observations(env, cfg)
    if cfg.normalize_rewards or cfg.reward_scale != 1:
        observations.rewards = Rewards(cfg)
    return observations


def _make_observations(env: EnvBase, cfg: TrainingConfig) -> Observations:
    spec, device = env.observation_spec, cfg.device
    size = spec["observation"].shape[-1]
    if isinstance(cfg.replay, HindsightReplayConfig):
        goal = RunningStatistics(spec["desired_goal"].shape[-1])
        statistics = RunningStatistics(size)
        return NormalizedObservations(statistics, goal, clip=cfg.replay.clip, device=device)
    # Offline recipes have both keys. A custom recipe may use `normalize` for something else.
    if getattr(cfg, "dataset", None) is not None and getattr(cfg, "normalize", False):
        # These are the settings of TD3+BC. `learn` is called once, with the whole dataset.
        statistics = RunningStatistics(size, least_deviation=0, added_deviation=1e-3)
        return NormalizedObservations(statistics, clip=math.inf, device=device)
    if cfg.env.normalize_observations:
        return NormalizedObservations(RunningStatistics(size), clip=cfg.env.clip, device=device)
    return Observations(device)
