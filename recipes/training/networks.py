"""Actors and critics, and the preprocessing of their inputs.

All are plain ReLU networks, as in the paper's table of hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.modules.distributions.utils import safetanh_noeps
from torchrl.objectives import LossModule

from torchrl_vmfer.fast import Backend
from vmfer_recipes.training.options import Config

__all__ = [
    "GoalPerception",
    "Perception",
    "RunningStatistics",
    "compiled",
    "deterministic_actor",
    "exploring",
    "gaussian_actor",
    "make_critics",
    "make_perception",
]


class _LocAndScale(nn.Module):
    """Splits a network's output into mean and standard deviation, within SAC's usual bounds."""

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = output.chunk(2, dim=-1)
        return loc, log_scale.clamp(-20, 2).exp()


def _sizes(env: EnvBase) -> tuple[int, int]:
    spec = env.observation_spec
    seen = [key for key in ("observation", "desired_goal") if key in spec.keys()]  # noqa: SIM118
    return sum(spec[key].shape[-1] for key in seen), env.action_spec.shape[-1]


def _mlp(inputs: int, outputs: int, hidden: Sequence[int]) -> MLP:
    return MLP(inputs, outputs, num_cells=list(hidden), activation_class=nn.ReLU)


def deterministic_actor(env: EnvBase, hidden: Sequence[int]) -> TensorDictModule:
    """TD3's policy π(s)."""
    observation, action = _sizes(env)
    network = nn.Sequential(_mlp(observation, action, hidden), nn.Tanh())
    return TensorDictModule(network, ["observation"], ["action"])


def gaussian_actor(env: EnvBase, hidden: Sequence[int]) -> ProbabilisticActor:
    """SAC's policy π(·|s): a Gaussian squashed to the action bounds."""
    observation, action = _sizes(env)
    network = nn.Sequential(_mlp(observation, 2 * action, hidden), _LocAndScale())
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -1.0, "high": 1.0},
        return_log_prob=True,
    )


class _AddNoise(nn.Module):
    """TD3's exploration: Gaussian noise, with actions clipped to [-1, 1]."""

    def __init__(self, network: Callable[[Tensor], Tensor], deviation: float) -> None:
        super().__init__()
        self.network = network
        self.deviation = deviation

    def forward(self, observation: Tensor) -> Tensor:
        action = self.network(observation)
        return (action + torch.randn_like(action) * self.deviation).clamp(-1, 1)


class _DrawAction(nn.Module):
    """SAC's exploration: an action sampled from the policy, unless exploration is off."""

    def __init__(self, network: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> Tensor:
        loc, scale = self.network(observation)
        if exploration_type() is ExplorationType.RANDOM:
            loc = loc + torch.randn_like(loc) * scale
        return safetanh_noeps(loc)


def exploring(
    backend: Backend, actor: TensorDictModule | ProbabilisticActor, noise: float | None = None
) -> TensorDictModule:
    """The data-collection policy: the network of the actor, with exploration.

    Args:
        backend: defines how the network is called.
        actor: an actor made by this module; its parameters are shared.
        noise: the standard deviation of the noise on the actions of a deterministic actor.
    """
    if noise is None:
        module: nn.Module = _DrawAction(backend.network(actor.module[0].module))
    else:
        module = _AddNoise(backend.network(actor.module), noise)
    return TensorDictModule(module, ["observation"], ["action"])


def make_critics(
    env: EnvBase, hidden: Sequence[int], count: int
) -> list[ValueOperator] | ValueOperator:
    """The ensemble Q_1(s, a) to Q_N(s, a). A list preserves the initial weights of each critic."""
    size = sum(_sizes(env))
    critics = [
        ValueOperator(_mlp(size, 1, hidden), in_keys=["observation", "action"])
        for _ in range(count)
    ]
    # For a list with one critic, TorchRL makes parameters that cannot be optimized.
    return critics if count > 1 else critics[0]


def compiled(loss: LossModule, *names: str) -> None:
    """Compiles methods of a loss, which is worthwhile on GPUs."""
    for name in names:
        setattr(loss, name, torch.compile(getattr(loss, name)))


class Perception(TensorDictModuleBase):
    """Passes the stored observation to the networks unchanged.

    Args:
        device: the device of the networks.
    """

    in_keys: Sequence[str] = ["observation"]
    out_keys = ["observation"]

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def learn(self, transition: TensorDictBase) -> None:
        """Updates the statistics with collected transitions."""

    def before(self, actor: TensorDictModuleBase) -> TensorDictModuleBase:
        """The policy that acts on raw observations of the environment."""
        return actor if self._device.type == "cpu" else _PerceivingPolicy(self, actor)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the observation and the next observation with the inputs of the networks."""
        # `to` takes time even if there is nothing to copy.
        return tensordict if self._device.type == "cpu" else tensordict.to(self._device)


class GoalPerception(Perception):
    """Concatenates observation and desired goal for the networks, with normalization.

    Mean and variance are computed over all collected data. The buffer stores raw data, and samples
    are normalized with the current statistics. (TorchRL's ``VecNormV2`` normalizes data once, at
    collection.) The statistics of goals include desired and achieved goals, since hindsight
    relabeling turns achieved goals into desired ones.

    Args:
        sizes: the lengths of observation and goal.
        clip: normalized values are clipped to ± this value.
        device: the device of the networks.
    """

    in_keys = ["observation", "desired_goal"]

    def __init__(self, sizes: tuple[int, int], clip: float, device: str) -> None:
        super().__init__(device)
        self.clip = clip
        self.observation, self.goal = (RunningStatistics(size).to(device) for size in sizes)

    def learn(self, transition: TensorDictBase) -> None:
        """Updates the statistics with collected transitions."""
        self.observation.add(transition["observation"])
        self.goal.add(transition["desired_goal"])
        self.goal.add(transition["next", "achieved_goal"])

    def before(self, actor: TensorDictModuleBase) -> TensorDictModuleBase:
        """The policy that acts on raw observations of the environment."""
        return _PerceivingPolicy(self, actor)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the observation and the next observation with the inputs of the networks."""
        tensordict = super().forward(tensordict)
        goal = self.goal.normalized(tensordict.get("desired_goal"))
        for key in ("observation", ("next", "observation")):
            raw = tensordict.get(key, None)
            if raw is not None:
                seen = torch.cat([self.observation.normalized(raw), goal], -1)
                tensordict.set(key, seen.clamp(-self.clip, self.clip))
        return tensordict


class _PerceivingPolicy(TensorDictModuleBase):
    """Acts on the preprocessed observation and keeps the raw one in the TensorDict to store."""

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
    """The elementwise mean and variance of the vectors seen so far.

    Args:
        size: the length of a vector.
        least_deviation: the lower bound of the standard deviation used for normalization.
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
        variance = self.squares / self.count.clamp(min=1)
        deviation = variance.sqrt().clamp(min=self.least_deviation)
        return (vectors - self.mean.to(vectors.dtype)) / deviation.to(vectors.dtype)


def make_perception(env: EnvBase, cfg: Config) -> Perception:
    """The perception that ``replay=`` requires."""
    if cfg.replay.kind != "her":
        return Perception(cfg.device)
    spec = env.observation_spec
    sizes = spec["observation"].shape[-1], spec["desired_goal"].shape[-1]
    return GoalPerception(sizes, cfg.replay.clip, cfg.device)
