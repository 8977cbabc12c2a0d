"""What networks see of stored transitions: the observation, or also a goal, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import GymWrapper

from vmfer_recipes.training.options import Config

__all__ = ["GoalPerception", "Perception", "make_perception"]


class Perception(TensorDictModuleBase):
    """Networks see the stored observation as it is.

    Args:
        device: where the networks are.
    """

    in_keys: Sequence[str] = ["observation"]
    out_keys = ["observation"]

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def learn(self, transition: TensorDictBase) -> None:
        """Takes account of collected transitions."""

    def before(self, actor: TensorDictModuleBase) -> TensorDictModuleBase:
        """The policy that acts on what an environment returns."""
        return actor if self._device.type == "cpu" else _PerceivingPolicy(self, actor)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Puts what is seen in the place of the observation, also of the next one."""
        # Even if nothing is to be moved, `to` would take its time.
        return tensordict if self._device.type == "cpu" else tensordict.to(self._device)


class GoalPerception(Perception):
    """Networks see observation and desired goal side by side, each number normalised.

    Mean and variance run over all that was collected, while the buffer keeps raw data: what is
    drawn again is seen by the present statistics. (TorchRL's ``VecNormV2`` normalises what is
    collected, once and for all.) Goals are desired ones as well as achieved ones, since
    hindsight makes the second of the first.

    Args:
        sizes: the lengths of observation and goal.
        clip: normalised numbers lie within ± this.
        device: where the networks are.
    """

    in_keys = ["observation", "desired_goal"]

    def __init__(self, sizes: tuple[int, int], clip: float, device: str) -> None:
        super().__init__(device)
        self.clip = clip
        self.observation, self.goal = (RunningStatistics(size).to(device) for size in sizes)

    def learn(self, transition: TensorDictBase) -> None:
        """Takes account of collected transitions."""
        self.observation.add(transition["observation"])
        self.goal.add(transition["desired_goal"])
        self.goal.add(transition["next", "achieved_goal"])

    def before(self, actor: TensorDictModuleBase) -> TensorDictModuleBase:
        """The policy that acts on what an environment returns."""
        return _PerceivingPolicy(self, actor)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Puts what is seen in the place of the observation, also of the next one."""
        tensordict = super().forward(tensordict)
        goal = self.goal.normalized(tensordict.get("desired_goal"))
        for key in ("observation", ("next", "observation")):
            raw = tensordict.get(key, None)
            if raw is not None:
                seen = torch.cat([self.observation.normalized(raw), goal], -1)
                tensordict.set(key, seen.clamp(-self.clip, self.clip))
        return tensordict


class _PerceivingPolicy(TensorDictModuleBase):
    """Acts on what is perceived, and leaves the raw observation to those who store it."""

    out_keys = ["action"]

    def __init__(self, perception: Perception, actor: TensorDictModuleBase) -> None:
        super().__init__()
        self.in_keys = perception.in_keys
        self.perception = perception
        self.actor = actor

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        seen = self.perception(tensordict.select(*self.in_keys))
        return tensordict.set("action", self.actor(seen).get("action"))


class RunningStatistics(nn.Module):
    """Mean and variance of each number of the vectors seen so far.

    Args:
        size: the length of a vector.
        least_deviation: where numbers hardly vary, this takes the place of their deviation.
    """

    def __init__(self, size: int, least_deviation: float = 1e-2) -> None:
        super().__init__()
        self.least_deviation = least_deviation
        self.count: Tensor
        self.mean: Tensor
        self.squares: Tensor  # the sum of squared deviations from the mean
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    def add(self, vectors: Tensor) -> None:
        """Takes account of some vectors ``[n, size]`` (Chan's formula for joining two sets)."""
        vectors = vectors.detach().to(self.mean)
        count, mean = len(vectors), vectors.mean(0)
        shift, total = mean - self.mean, self.count + len(vectors)
        self.squares += (vectors - mean).square().sum(0)
        self.squares += shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count.copy_(total)

    def normalized(self, vectors: Tensor) -> Tensor:
        """Vectors with mean 0 and deviation 1, as far as those seen so far tell."""
        variance = self.squares / self.count.clamp(min=1)
        deviation = variance.sqrt().clamp(min=self.least_deviation)
        return (vectors - self.mean.to(vectors.dtype)) / deviation.to(vectors.dtype)


def make_perception(env: GymWrapper, cfg: Config) -> Perception:
    """The perception that an environment asks for."""
    if cfg.replay.kind != "her":
        return Perception(cfg.device)
    spec = env.observation_spec
    sizes = spec["observation"].shape[-1], spec["desired_goal"].shape[-1]
    return GoalPerception(sizes, cfg.replay.clip, cfg.device)
