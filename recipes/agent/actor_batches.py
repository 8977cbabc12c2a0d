"""How the actor's batch is drawn: by its sampler, or with the help of the current networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import ActorCriticReplayBuffer, CandidatePool, VMFUncertainty
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.config.replay_groups import (
    DirectSamplerConfig,
    OnPolicySamplerConfig,
    SharedSamplerConfig,
    WeightedSamplerConfig,
)
from vmfer_recipes.config.training import TrainingConfig

__all__ = [
    "action_distances",
    "make_actor_sampling",
    "policy_action",
    "saturation",
    "unchanged_random_numbers",
    "weighted_mean",
]

_WEIGHT = "priority_weight"  # the entry by which TorchRL's losses weight transitions


def make_actor_sampling(
    buffer: ActorCriticReplayBuffer,
    observations: Observations,
    actor: TensorDictModuleBase,
    uncertainty: VMFUncertainty,
    cfg: TrainingConfig,
    entries: Sequence[str] = ("observation",),
) -> Callable[[], TensorDictBase] | None:
    """Makes the function that draws the actor's batch; ``None`` if it is the critics' batch.

    The caller applies the preprocessing, after which the batch has the given entries.
    """
    sampler = cfg.sampler
    if isinstance(sampler, SharedSamplerConfig):
        return None
    keys = observations.stored_keys(entries)

    def measure(batch: TensorDictBase) -> TensorDictBase:
        return uncertainty(observations(batch))

    if isinstance(sampler, DirectSamplerConfig):
        mode: Any = sampler.mode
        pool = CandidatePool(buffer, sampler.num_candidates, mode, score=measure)
        return partial(pool.sample, keys=keys)
    draw = partial(buffer.sample_actor, keys=keys)
    if isinstance(sampler, WeightedSamplerConfig):
        return lambda: _weighted(draw(), measure, cfg.device)
    if isinstance(sampler, OnPolicySamplerConfig):
        sizes = sampler.num_batches, cfg.batch_size
        return lambda: _closest_batch(buffer, observations, actor, sizes, keys)
    return draw


def _weighted(
    batch: TensorDictBase, measure: Callable[[TensorDictBase], TensorDictBase], device: str
) -> TensorDictBase:
    """Adds the weights p / mean p, which TorchRL's actor losses apply."""
    # The actor loss then draws the same actions as the measurement, and the random numbers of
    # training do not depend on the sampler.
    with unchanged_random_numbers(device):
        factor = measure(batch.copy())["vmf", "factor"]
    return batch.set(_WEIGHT, (factor / factor.mean()).to(batch["index"].device))


def weighted_mean(values: Tensor, batch: TensorDictBase) -> Tensor:
    """The mean over the transitions of a batch, weighted by the weights of the batch, if any."""
    weight = batch.get(_WEIGHT, None)
    return values.mean() if weight is None else (values * weight).sum() / weight.sum()


def _closest_batch(
    buffer: ActorCriticReplayBuffer,
    observations: Observations,
    actor: TensorDictModuleBase,
    sizes: tuple[int, int],
    keys: Sequence[str],
) -> TensorDictBase:
    """Draws several uniform batches and returns the one whose actions are closest to the policy's.

    This is the idea of the actor's half of DPER (Lorasdagi et al., 2025, arXiv 2512.05320), which
    follows KLPER (Cicek et al., 2021, arXiv 2111.01865). Both choose the batch by a KL divergence
    between stored and current actions; this function uses :func:`action_distances`.
    """
    number, size = sizes
    read = list(dict.fromkeys([*keys, "action"]))
    candidates = buffer.sample_actor(number * size, keys=read)
    policy = policy_action(actor, observations(candidates.select(*observations.in_keys)))
    stored = candidates["action"].to(policy.device)
    chosen = int(action_distances(stored, policy, number).argmin())
    candidates = candidates.select(*keys, "index")
    return candidates[chosen * size : (chosen + 1) * size]


def policy_action(actor: TensorDictModuleBase, batch: TensorDictBase) -> Tensor:
    """The action without noise, whose components are in [-1, 1]."""
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return actor(batch.select(*actor.in_keys))["action"]


def saturation(actor: TensorDictModuleBase, batch: TensorDictBase) -> Tensor:
    """The mean absolute component of the policy's action, for each state of a batch."""
    return policy_action(actor, batch).abs().mean(-1)


def action_distances(stored: Tensor, policy: Tensor, number: int) -> Tensor:
    """The mean squared distance between stored actions and the policy's, for each of some batches.

    If the policy explores with Gaussian noise of a fixed scale, the batch with the smallest
    distance is the one that the policy would most likely have produced. The actions of the batches
    follow each other, ``[number * size, A]``.

    Example:
        >>> stored = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
        >>> action_distances(stored, torch.tensor([[1.0], [0.0], [1.0], [0.8]]), 2)
        tensor([0.5000, 0.0200])
    """
    distances = (stored - policy).square().flatten(1).sum(-1)
    return distances.unflatten(0, (number, -1)).mean(-1)


def unchanged_random_numbers(device: torch.device | str) -> AbstractContextManager[None]:
    """A context after which PyTorch continues with the random numbers from before it.

    Other GPUs than that of the networks are left alone: saving their state would initialize them.
    """
    device = torch.device(device)
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])
