"""Actors and critics, and the policies that a run saves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator

from torchrl_vmfer import Policy, load_policy
from torchrl_vmfer.compiled.explorer import make_explorer
from torchrl_vmfer.networks import NetworkSpec, actor_network, check_ensemble
from torchrl_vmfer.policy_files import PolicyError
from vmfer_recipes.agent.observations import ObservingPolicy
from vmfer_recipes.collection.worker import Explorer
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.plugins import importing
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment

_RENORM = ("batch_renorm", "batch_renorm_warmup")  # keys that some recipes have for their critics


def network_spec(cfg: TrainingConfig) -> NetworkSpec:
    """The networks that a configuration selects."""
    return NetworkSpec(
        cfg.network, dict(cfg.network_kwargs), list(cfg.hidden), cfg.activation, cfg.layer_norm
    )


@dataclass(frozen=True)
class CriticSpec(NetworkSpec):
    """The specification of a critic, with dropout after each hidden linear layer of an MLP."""

    dropout: float = 0.0

    def make(self, inputs: int, outputs: int, device: str | None = None) -> nn.Module:
        """Makes a network."""
        network: Any = super().make(inputs, outputs, device)
        if self.dropout:
            linear = [i for i, part in enumerate(network) if isinstance(part, nn.Linear)]
            for position in reversed(linear[:-1]):
                network.insert(position + 1, nn.Dropout(self.dropout))
        return network


def critic_network_spec(cfg: TrainingConfig) -> CriticSpec:
    """The specification of the critics: the actor's, except for keys named ``critic_*``."""
    renorm = {key: getattr(cfg, key) for key in _RENORM if hasattr(cfg, key)}
    return CriticSpec(
        cfg.of_critics("network"),
        dict(cfg.critic_network_kwargs if cfg.critic_network else cfg.network_kwargs),
        list(cfg.of_critics("hidden")),
        cfg.activation,
        cfg.of_critics("layer_norm"),
        dropout=cfg.critic_dropout,
        **renorm,
    )


def _sizes(env: EnvBase) -> tuple[int, int]:
    spec = env.observation_spec
    seen = [key for key in ("observation", "desired_goal") if key in spec.keys()]  # noqa: SIM118
    return sum(spec[key].shape[-1] for key in seen), env.action_spec.shape[-1]


def deterministic_actor(env: EnvBase, spec: NetworkSpec) -> TensorDictModule:
    """TD3's policy π(s)."""
    with importing():
        network = actor_network("deterministic", spec, *_sizes(env))
    return TensorDictModule(network, ["observation"], ["action"])


def gaussian_actor(env: EnvBase, spec: NetworkSpec) -> ProbabilisticActor:
    """SAC's policy π(·|s): a Gaussian squashed to the action bounds."""
    with importing():
        network = actor_network("gaussian", spec, *_sizes(env))
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -1.0, "high": 1.0},
        return_log_prob=True,
    )


def _network_of(actor: TensorDictModule | ProbabilisticActor) -> nn.Module:
    return actor.module[0].module if isinstance(actor, ProbabilisticActor) else actor.module


def exploring(
    actor: TensorDictModule | ProbabilisticActor, fast: bool, noise: float | None = None
) -> TensorDictModule:
    """The data-collection policy: the network of the actor, with exploration.

    With ``fast``, it computes single actions in one compiled call, where possible. ``noise`` is the
    standard deviation of the noise on the actions of a deterministic actor.
    """
    explorer = Explorer(_network_of(actor), noise)
    acting = make_explorer(explorer) if fast else explorer
    return TensorDictModule(acting, ["observation"], ["action"])


class _Concatenated(nn.Module):
    """Passes observation and action to a custom network as separate arguments, as to an MLP."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.network(torch.cat(inputs, -1))


def make_critics(
    env: EnvBase, spec: NetworkSpec, count: int, outputs: int = 1
) -> list[ValueOperator] | ValueOperator:
    """The ensemble Q_1(s, a) to Q_N(s, a). A list preserves the initial weights of each critic.

    The outputs of a critic are its value, or quantiles of the return.
    """
    size = sum(_sizes(env))
    with importing():
        networks = [spec.make(size, outputs) for _ in range(count)]
        if not spec.is_mlp:
            check_ensemble(networks[0], size, f"network={spec.network}")
            networks = [_Concatenated(network) for network in networks]
    critics = [ValueOperator(network, in_keys=["observation", "action"]) for network in networks]
    # For a list with one critic, TorchRL makes parameters that cannot be optimized.
    return critics if count > 1 else critics[0]


def policy_data(
    policy: TensorDictModuleBase, env: Environment, cfg: TrainingConfig, step: int | None = None
) -> dict[str, Any]:
    """A policy as plain data, which ``torchrl_vmfer.load_policy`` reads.

    It is an actor of this module, with or without preprocessing, after some steps of the run.
    """
    actor, normalization, space = policy, None, env.own_action_space
    if isinstance(policy, ObservingPolicy):
        actor, normalization = policy.actor, policy.observations.normalization()
    try:
        network = _network_of(actor)
        # The constructor of a custom network must not change the random numbers of the run.
        with torch.random.fork_rng(devices=[]):
            saved = Policy(
                "gaussian" if isinstance(actor, ProbabilisticActor) else "deterministic",
                network_spec(cfg),
                network_inputs(env),
                space.low,
                space.high,
                space.dtype.name,
                normalization=normalization,
                weights=network.state_dict(),
                environment=cfg.env.name,
                step=step,
            )
    except (AttributeError, IndexError, RuntimeError) as error:
        raise UserError(
            f"The policy cannot be saved ({first_line(error)}): make it with deterministic_actor "
            "or gaussian_actor of vmfer_recipes.agent.networks."
        ) from error
    return saved.data()


def load_policy_of_run(path: Path, which: str) -> Policy:
    """Loads a policy of a run directory, with errors in one line."""
    with importing():
        try:
            return load_policy(path, which)
        except PolicyError as error:
            raise UserError(str(error)) from error


def network_inputs(env: Environment) -> dict[str | tuple[str, ...], tuple[int, ...]]:
    """The entries of an observation as the environment itself returns them, with their shapes.

    They are in the order in which the networks receive them.
    """
    spec, space = env.observation_spec, env.own_observation_space
    if "desired_goal" in spec.keys():  # noqa: SIM118
        return {key: tuple(spec[key].shape) for key in ("observation", "desired_goal")}
    parts = dict(_boxes(space))
    if {"observation", "achieved_goal", "desired_goal"} <= {first for first, *_ in parts}:
        parts = {key: shape for key, shape in parts.items() if key[0] != "achieved_goal"}
    if sum(map(math.prod, parts.values())) != spec["observation"].shape[-1]:
        return {"observation": tuple(spec["observation"].shape)}  # flattened by the user
    return {key[0] if len(key) == 1 else key: shape for key, shape in parts.items()}


def _boxes(space: Any, *prefix: str) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The arrays in an observation space, in the order in which Gymnasium flattens them."""
    if isinstance(space, gym.spaces.Dict):
        for name, part in space.spaces.items():
            yield from _boxes(part, *prefix, name)
    elif isinstance(space, gym.spaces.Box):
        yield prefix or ("observation",), space.shape
