"""Actors and critics: plain ReLU networks, as in the paper's table of hyper-parameters."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator

__all__ = ["deterministic_actor", "gaussian_actor", "make_critics"]


class _LocAndScale(nn.Module):
    """Splits a network's output into mean and standard deviation, within SAC's usual bounds."""

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = output.chunk(2, dim=-1)
        return loc, log_scale.clamp(-20, 2).exp()


def _sizes(env: EnvBase) -> tuple[int, int]:
    return env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]


def _mlp(inputs: int, outputs: int, hidden: Sequence[int]) -> MLP:
    return MLP(inputs, outputs, num_cells=list(hidden), activation_class=nn.ReLU)


def deterministic_actor(env: EnvBase, hidden: Sequence[int]) -> TensorDictModule:
    """TD3's policy π(s)."""
    observation, action = _sizes(env)
    network = nn.Sequential(_mlp(observation, action, hidden), nn.Tanh())
    return TensorDictModule(network, ["observation"], ["action"])


def gaussian_actor(env: EnvBase, hidden: Sequence[int]) -> ProbabilisticActor:
    """SAC's policy π(·|s): a Gaussian squashed into the bounds of the action."""
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


def make_critics(env: EnvBase, hidden: Sequence[int], count: int) -> list[ValueOperator]:
    """The ensemble Q_1(s, a) to Q_N(s, a). A list keeps each critic's own initial weights."""
    size = sum(_sizes(env))
    return [
        ValueOperator(_mlp(size, 1, hidden), in_keys=["observation", "action"])
        for _ in range(count)
    ]
