"""The replay buffer of a recipe: one storage, with separate samplers for critics and actor."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import PrioritizedSampler, RandomSampler
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.envs import GymWrapper

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    GradientNormSampler,
    HindsightReplayBuffer,
    InverseTDSampler,
    LAPSampler,
    MixedSampler,
    OldSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)
from torchrl_vmfer.samplers.adapters import signal_of
from vmfer_recipes.agent.backend import Backend
from vmfer_recipes.collection.transitions import ENVIRONMENT
from vmfer_recipes.config.errors import UserError, diverged, first_line
from vmfer_recipes.config.plugins import import_class
from vmfer_recipes.config.replay_groups import (
    GradientNormSamplerConfig,
    HindsightReplayConfig,
    InverseTDSamplerConfig,
    LAPReplayConfig,
    OldSamplerConfig,
    OwnReplayConfig,
    OwnSamplerConfig,
    PrioritizedReplayConfig,
    RecentSamplerConfig,
    ReplayConfig,
    SamplerConfig,
    SaturatedSamplerConfig,
    VMFSamplerConfig,
)
from vmfer_recipes.config.training import TrainingConfig

__all__ = [
    "actor_signal",
    "check_memory",
    "make_replay_buffer",
    "store_priorities",
    "stores_td_errors",
]

_SIGNALS = {
    "factor": "a sampling factor",
    "td_error": "a TD error",
    "gradient_norm": "the norm of an action gradient",
    "saturation": "an action of the policy",
}


def make_replay_buffer(
    env: GymWrapper, cfg: TrainingConfig, backend: Backend
) -> ActorCriticReplayBuffer:
    """Makes the buffer selected by ``replay=`` and ``sampler=``.

    It has a separate random generator, so that sampling does not affect the random numbers of the
    environment and of exploration.
    """
    is_alone = cfg.collector.kind == "single"  # other processes do not read its counters
    parts: dict[str, Callable[[], Any]] = {
        "storage": partial(backend.storage, cfg.replay.buffer_size, compilable=is_alone),
        # Workers may overwrite transitions that the learner is about to score.
        "writer": partial(backend.writer, compilable=is_alone, track_generations=not is_alone),
        "critic_sampler": partial(_critic_sampler, cfg.replay),
        "actor_sampler": partial(_actor_sampler, cfg.sampler),
    }
    if cfg.collector.kind == "ray":
        from vmfer_recipes.collection.ray_workers import RemoteReplay

        return RemoteReplay(cfg, **parts)  # type: ignore[return-value]  # it has the same methods
    options = {
        **{name: make() for name, make in parts.items()},
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


def _critic_sampler(cfg: ReplayConfig) -> Sampler:
    if isinstance(cfg, OwnReplayConfig):
        return _own_sampler(cfg, "replay")
    if isinstance(cfg, PrioritizedReplayConfig):
        if cfg.kind == "per_rank":
            return RankPrioritizedSampler(alpha=cfg.alpha, beta=cfg.beta)
        return PrioritizedSampler(cfg.buffer_size, alpha=cfg.alpha, beta=cfg.beta)
    if isinstance(cfg, LAPReplayConfig):
        return LAPSampler(exponent=cfg.alpha)
    return RandomSampler()


class _SaturatedSampler(VMFSampler):
    """Draws by exp(saturation) instead of the factor. Both are from 1 to e, and 1 if unknown."""

    signal = "saturation"


def _actor_sampler(cfg: SamplerConfig) -> Sampler:
    if isinstance(cfg, OwnSamplerConfig):
        return _own_sampler(cfg, "sampler")
    if isinstance(cfg, VMFSamplerConfig):
        return _vmf_sampler(cfg)
    if isinstance(cfg, InverseTDSamplerConfig):
        return InverseTDSampler(exponent=cfg.exponent, floor=cfg.floor)
    if isinstance(cfg, GradientNormSamplerConfig):
        return GradientNormSampler(power=cfg.power)
    if isinstance(cfg, SaturatedSamplerConfig):
        return _SaturatedSampler(power=cfg.power)
    if isinstance(cfg, RecentSamplerConfig):
        return RecentSampler(decay=cfg.decay, min_size=cfg.min_size, cycle=cfg.cycle)
    if isinstance(cfg, OldSamplerConfig):
        return OldSampler(exponent=cfg.exponent)
    return RandomSampler()


def _vmf_sampler(cfg: VMFSamplerConfig) -> Sampler:
    try:
        sampler = VMFSampler(
            cfg.mode,  # type: ignore[arg-type]  # one of its choices
            power=cfg.power,
            initial_factor=cfg.initial_factor,
            smoothing=cfg.smoothing,
            pool_size=cfg.pool_size,
        )
    except ValueError as error:  # keys that do not work together
        raise UserError(f"sampler={cfg.name}: {first_line(error)}") from error
    return sampler if cfg.share == 1 else MixedSampler(sampler, RandomSampler(), cfg.share)


def _own_sampler(cfg: OwnSamplerConfig | OwnReplayConfig, group: str) -> Sampler:
    kind = import_class(cfg.path, Sampler, group)
    try:
        return kind(**cfg.kwargs)
    except Exception as error:
        raise UserError(
            f"{group}={cfg.path} could not be created with {group}.kwargs={cfg.kwargs} "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error


def actor_signal(cfg: SamplerConfig) -> str | None:
    """What the sampler of a ``sampler=`` stores: "factor", "td_error", "gradient_norm" or ``None``.

    It is the attribute ``signal`` of the sampler. Without this attribute, a sampler that uses
    priorities receives factors.
    """
    signal = signal_of(_actor_sampler(cfg))
    if signal is not None and signal not in _SIGNALS:
        raise UserError(
            f"sampler={cfg.name} has signal={signal!r}, but the recipes provide "
            f"{', '.join(_SIGNALS)}: set one of these, or None."
        )
    return signal


def stores_td_errors(cfg: ReplayConfig) -> bool:
    """Whether a ``replay=`` uses TD errors; one of the user's own if it takes priorities."""
    if isinstance(cfg, OwnReplayConfig):
        # The method of TorchRL's base class only warns.
        kind = import_class(cfg.path, Sampler, "replay")
        return kind.update_priority is not Sampler.update_priority
    return isinstance(cfg, (PrioritizedReplayConfig, LAPReplayConfig))


def store_priorities(
    update: Callable[..., None], batch: TensorDictBase, values: Tensor, signal: str
) -> None:
    """Updates a sampler with what was measured on a batch.

    Args:
        update: ``update_priority`` or ``update_actor_priority`` of the buffer.
        batch: the batch.
        values: one value for each transition of the batch.
        signal: what the values are, as in :func:`actor_signal`.
    """
    try:
        generation = batch.get("index_generation", None)  # set if several processes write
        update(batch["index"], values, generation)
    except ValueError as error:
        if values.isfinite().all():
            raise
        raise diverged(f"{_SIGNALS[signal]} is not finite") from error
