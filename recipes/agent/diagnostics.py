"""Diagnostics of the actor's batch and gradient, which do not affect training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_vmfer import ActorCriticReplayBuffer, VMFUncertainty, effective_sample_size
from torchrl_vmfer.samplers.adapters import probabilities_of
from torchrl_vmfer.samplers.base import BaseSampler
from vmfer_recipes.agent.replay import policy_action, unchanged_random_numbers
from vmfer_recipes.config.groups import (
    DirectSamplerConfig,
    OnPolicySamplerConfig,
    SamplerConfig,
    SharedSamplerConfig,
)

if TYPE_CHECKING:
    from vmfer_recipes.agent.agent import Agent

_SATURATED = 0.99  # absolute value of actions scaled to [-1, 1]
# The current networks choose among candidates: there are no stored probabilities.
_WITHOUT_DISTRIBUTION = (DirectSamplerConfig, OnPolicySamplerConfig)


def signal_to_noise(first: Tensor, second: Tensor) -> Tensor:
    """Estimates ‖G‖² / tr Cov(ḡ) from the gradients of the two halves of a batch, as vectors.

    ḡ is their mean, the gradient of the batch, and G its expectation. The halves are independent,
    so that g₁ᵀg₂ is an unbiased estimate of ‖G‖², and ‖g₁ - g₂‖²/4 one of the variance of ḡ. The
    ratio is negative if the angle between the two gradients exceeds 90°.
    """
    return 4 * first.dot(second) / (first - second).square().sum()


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of the angle between two vectors."""
    return first.dot(second) / (first.norm() * second.norm())


def measure(agent: Agent, batch: TensorDictBase) -> dict[str, Tensor]:
    """The diagnostics of the actor's batch, by the names of their columns.

    Those that are not defined are left out. Random numbers, gradients, networks and samplers do not
    change.
    """
    buffer = agent.buffer
    with _without_effects(agent):
        size = policy_action(agent.actor, batch).abs().double()
        found: dict[str, Any] = {
            "saturation": size.mean(),
            "saturated_fraction": (size > _SATURATED).double().mean(),
        }
        even = batch[: len(batch) // 2 * 2]
        if len(even):
            # Alternate rows: some samplers order the rows of a batch by where they come from.
            halves = (_gradient(agent, even[start::2]) for start in (0, 1))
            found["gradient_snr"] = signal_to_noise(*halves)
        keys = agent.observations.stored_keys(agent.actor_keys)
        uniform = agent.observations(buffer.sample_uniformly(len(batch), keys=keys))
        other = _gradient(agent, uniform)
        found["gradient_cosine"] = cosine(_gradient(agent, batch), other)
        found |= _distribution(buffer, batch, agent.sampler)
    values = {
        name: torch.as_tensor(value, dtype=torch.float64, device="cpu")
        for name, value in found.items()
    }
    return {name: value for name, value in values.items() if value.isfinite()}


@contextmanager
def _without_effects(agent: Agent) -> Iterator[None]:
    loss, generator = agent.loss, agent.buffer.generator
    state = None if generator is None else generator.get_state()
    # Custom networks may have running statistics, which each pass updates.
    statistics = [
        tensor
        for params in (loss.actor_network_params, loss.qvalue_network_params)
        for tensor in params.values(True, True)
        if not isinstance(tensor, nn.Parameter)
    ]
    saved = [tensor.clone() for tensor in statistics]
    try:
        with unchanged_random_numbers(_actor_parameters(agent)[0].device):
            yield
    finally:
        for tensor, value in zip(statistics, saved, strict=True):
            tensor.data.copy_(value)
        if generator is not None and state is not None:
            generator.set_state(state)


def _actor_parameters(agent: Agent) -> list[Tensor]:
    return [tensor for group in agent.actor_optimizer.param_groups for tensor in group["params"]]


def _gradient(agent: Agent, batch: TensorDictBase) -> Tensor:
    # A copy, because the loss adds entries. Not the method compiled by torch.compile, which would
    # be compiled again for batches of another size.
    loss, _ = type(agent.loss).actor_loss(agent.loss, batch.copy())
    gradients = torch.autograd.grad(loss, _actor_parameters(agent), allow_unused=True)
    known = [gradient.flatten() for gradient in gradients if gradient is not None]
    return torch.cat(known).double()


def _distribution(
    buffer: ActorCriticReplayBuffer, batch: TensorDictBase, chosen: SamplerConfig
) -> dict[str, float]:
    """The age of the batch, its distribution, and the age of the priorities."""
    stored = len(buffer)
    ages = (buffer.write_count - 1 - batch["index"].double()) % stored
    found: dict[str, float] = {
        "stored_transitions": stored,
        "relative_age": float(ages.mean()) / max(stored - 1, 1),
    }
    if isinstance(chosen, _WITHOUT_DISTRIBUTION):
        return found
    is_shared = isinstance(chosen, SharedSamplerConfig)
    sampler = buffer.critic_sampler if is_shared else buffer.actor_sampler
    # A pool and some custom samplers have no probabilities for the whole buffer.
    with suppress(NotImplementedError):
        found["effective_sample_size"] = (
            sampler.effective_sample_size(buffer.storage)
            if isinstance(sampler, BaseSampler)
            else effective_sample_size(probabilities_of(sampler, buffer.storage))
        )
    if getattr(sampler, "records_updates", False):
        found["factor_age"] = sampler.priority_age()
        found["unscored_fraction"] = sampler.unscored_fraction()
    return found


def agreement(
    info: dict[str, Tensor], uncertainty: VMFUncertainty, batch: TensorDictBase
) -> dict[str, Tensor]:
    """The mean and quantiles of the factor and the resultant length over an actor batch.

    They are read from the metadata of the actor loss, or else computed.
    """
    if "vmf_factor" not in info:
        with unchanged_random_numbers(batch["observation"].device):
            measured = uncertainty(batch.select("observation"))["vmf"]
        info = {f"vmf_{name}": value for name, value in measured.items()}
    statistics = {}
    for name in ("factor", "resultant_length"):
        values = info[f"vmf_{name}"].sort().values
        statistics[f"{name}_mean"] = values.mean()
        for percent in (10, 50, 90):
            statistics[f"{name}_q{percent}"] = values[(len(values) - 1) * percent // 100]
    return statistics
