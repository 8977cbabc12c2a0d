"""The replay buffer of a recipe: one storage, with separate samplers for critics and actor."""

from __future__ import annotations

import os
from typing import Any

import torch
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.envs import GymWrapper

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    HindsightReplayBuffer,
    MixedSampler,
    VMFSampler,
)
from torchrl_vmfer.compiled.rows import RowStorage, RowWriter
from torchrl_vmfer.samplers.adapters import signal_of
from vmfer_recipes.collection.transitions import ENVIRONMENT
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.plugins import import_class, instantiate
from vmfer_recipes.config.replay_groups import (
    DirectSamplerConfig,
    HindsightReplayConfig,
    ReplayConfig,
    SamplerConfig,
    SharedSamplerConfig,
)
from vmfer_recipes.config.training import TrainingConfig

__all__ = [
    "SIGNALS",
    "actor_signal",
    "check_memory",
    "make_replay_buffer",
    "stores_td_errors",
]

SIGNALS = {
    "factor": "a sampling factor",
    "td_error": "a TD error",
    "gradient_norm": "the norm of an action gradient",
    "saturation": "an action of the policy",
}


def make_replay_buffer(env: GymWrapper, cfg: TrainingConfig) -> ActorCriticReplayBuffer:
    """Makes the buffer selected by ``replay=`` and ``sampler=``.

    It has a separate random generator, so that sampling does not affect the random numbers of the
    environment and of exploration.
    """
    storage = RowStorage if cfg.fast else LazyTensorStorage
    writer = RowWriter if cfg.fast else TensorDictRoundRobinWriter
    options: dict[str, Any] = {
        # No other process reads their counters.
        "storage": storage(cfg.replay.buffer_size, compilable=True),
        "writer": writer(compilable=True),
        "critic_sampler": instantiate(cfg.replay, Sampler, "replay"),
        "actor_sampler": _actor_sampler(cfg.sampler),
        "batch_size": cfg.batch_size,
        "generator": torch.Generator().manual_seed(cfg.seed),
    }
    buffer: ActorCriticReplayBuffer
    if isinstance(cfg.replay, HindsightReplayConfig):
        buffer = HindsightReplayBuffer(
            reward_fn=HindsightReplayBuffer.gymnasium_reward(env.simulator),
            her_ratio=cfg.replay.her_ratio,
            strategy=cfg.replay.strategy,  # type: ignore[arg-type]  # one of its choices
            trajectory_key=ENVIRONMENT,
            **options,
        )
    else:
        buffer = ActorCriticReplayBuffer(**options)
    buffer.drop_transform()
    return buffer


def check_memory(env: GymWrapper, buffer_size: int) -> None:
    """Raises an error if the transitions of a full buffer exceed the memory of this machine."""
    seen, action = env.observation_spec.zero().bytes(), env.action_spec.zero().nbytes
    size = buffer_size * (2 * seen + action + 4 + 2)  # a reward and two flags
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UserError(
            f"replay.buffer_size={buffer_size} needs {size / 1e9:,.1f} GB for the transitions of "
            f"this task, but this machine has {memory / 1e9:,.1f} GB of memory: lower it."
        )


class SaturatedSampler(VMFSampler):
    """Draws by exp(saturation) instead of the factor. Both are from 1 to e, and 1 if unknown."""

    signal = "saturation"


def _actor_sampler(cfg: SamplerConfig) -> Sampler:
    if isinstance(cfg, (SharedSamplerConfig, DirectSamplerConfig)):
        return RandomSampler()  # it draws no batches
    sampler = instantiate(cfg, Sampler, "sampler")
    share = getattr(cfg, "share", 1)
    return sampler if share == 1 else MixedSampler(sampler, RandomSampler(), share)


def actor_signal(cfg: SamplerConfig) -> str | None:
    """What the sampler of a ``sampler=`` stores: "factor", "td_error", "gradient_norm" or ``None``.

    It is the attribute ``signal`` of the sampler. Without this attribute, a sampler that uses
    priorities receives factors.
    """
    signal = signal_of(_actor_sampler(cfg))
    if signal is not None and signal not in SIGNALS:
        raise UserError(
            f"sampler={cfg.name} has signal={signal!r}, but the recipes provide "
            f"{', '.join(SIGNALS)}: set one of these, or None."
        )
    return signal


def stores_td_errors(cfg: ReplayConfig) -> bool:
    """Whether the sampler of a ``replay=`` takes priorities, which are then TD errors."""
    # The method of TorchRL's base class only warns.
    sampler = import_class(cfg._target_, Sampler, "replay")
    return sampler.update_priority is not Sampler.update_priority
