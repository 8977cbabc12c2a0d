"""Actors and critics.

All are plain ReLU networks, as in the paper's table of hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.modules.distributions.utils import safetanh_noeps
from torchrl.objectives import LossModule

from torchrl_vmfer.fast import Backend

__all__ = [
    "compiled",
    "deterministic_actor",
    "exploring",
    "gaussian_actor",
    "make_critics",
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
