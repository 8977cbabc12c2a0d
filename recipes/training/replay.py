"""The replay buffer of a recipe: one storage, with separate samplers for critics and actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    CandidatePool,
    HindsightReplayBuffer,
    RankPrioritizedSampler,
    VMFSampler,
    VMFUncertainty,
)
from torchrl_vmfer.fast import Backend
from vmfer_recipes.training.errors import UserError, diverged, first_line
from vmfer_recipes.training.imports import import_class
from vmfer_recipes.training.options import Config
from vmfer_recipes.training.perception import Perception
from vmfer_recipes.training.transitions import ENVIRONMENT

__all__ = [
    "make_actor_sampling",
    "make_replay_buffer",
    "prioritize",
    "stores_factors",
    "stores_td_errors",
]


def make_replay_buffer(env: GymWrapper, cfg: Config, backend: Backend) -> ActorCriticReplayBuffer:
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
        from vmfer_recipes.training.ray_workers import RemoteReplay

        return RemoteReplay(cfg, **parts)  # type: ignore[return-value]  # it has the same methods
    options = {
        **{name: make() for name, make in parts.items()},
        "batch_size": cfg.batch_size,
        "generator": torch.Generator().manual_seed(cfg.seed),
    }
    buffer: ActorCriticReplayBuffer
    if cfg.replay.kind == "her":
        buffer = HindsightReplayBuffer(
            reward_fn=HindsightReplayBuffer.gymnasium_reward(env.simulator),
            her_ratio=cfg.replay.her_ratio,
            strategy=cfg.replay.strategy,
            trajectory_key=ENVIRONMENT,
            **options,
        )
    else:
        buffer = ActorCriticReplayBuffer(**options)
    buffer.drop_transform()
    return buffer


def _critic_sampler(cfg: Config) -> Sampler:
    if cfg.kind == "own":
        return _own_sampler(cfg, "replay")
    if cfg.kind == "per":
        return PrioritizedSampler(cfg.buffer_size, alpha=cfg.alpha, beta=cfg.beta)
    if cfg.kind == "per_rank":
        return RankPrioritizedSampler(alpha=cfg.alpha, beta=cfg.beta)
    return RandomSampler()


def _actor_sampler(cfg: Config) -> Sampler:
    if cfg.kind == "own":
        return _own_sampler(cfg, "sampler")
    if cfg.kind == "vmf":
        return VMFSampler(
            cfg.mode,
            initial_factor=cfg.initial_factor,
            smoothing=cfg.smoothing,
            pool_size=getattr(cfg, "pool_size", None),
        )
    return RandomSampler()


def _own_sampler(cfg: Config, group: str) -> Sampler:
    kind = import_class(cfg.path, Sampler, group)
    try:
        return kind(**cfg.kwargs)
    except Exception as error:
        raise UserError(
            f"{group}={cfg.path} cannot be made with {group}.kwargs={cfg.kwargs} "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error


def stores_factors(cfg: Config) -> bool:
    """Whether a ``sampler=`` uses stored factors; one of the user's own if it takes priorities."""
    return cfg.kind == "vmf" or (cfg.kind == "own" and _takes_priorities(cfg, "sampler"))


def stores_td_errors(cfg: Config) -> bool:
    """Whether a ``replay=`` uses TD errors; one of the user's own if it takes priorities."""
    if cfg.kind == "own":
        return _takes_priorities(cfg, "replay")
    return cfg.kind in ("per", "per_rank")


def _takes_priorities(cfg: Config, group: str) -> bool:
    """Whether the class defines ``update_priority``, which TorchRL's base class only warns of."""
    kind = import_class(cfg.path, Sampler, group)
    return kind.update_priority is not Sampler.update_priority


def prioritize(buffer: ActorCriticReplayBuffer, batch: TensorDictBase, td_error: Tensor) -> None:
    """Updates the critics' sampler with the TD errors of a batch."""
    try:
        generation = batch.get("index_generation", None)  # set if several processes write
        buffer.update_priority(batch["index"], td_error, generation)
    except ValueError as error:
        if td_error.isfinite().all():
            raise
        raise diverged("a TD error is not finite") from error


def make_actor_sampling(
    buffer: ActorCriticReplayBuffer,
    perception: Perception,
    uncertainty: VMFUncertainty,
    cfg: Config,
    entries: Sequence[str] = ("observation",),
) -> Callable[[], TensorDictBase] | None:
    """Makes the function that draws the actor's batch; ``None`` if it is the critics' batch.

    Args:
        buffer: the replay buffer.
        perception: the preprocessing of the batch, which the caller applies.
        uncertainty: scores the candidates of ``sampler=vmf_direct``.
        cfg: the configuration of the run.
        entries: the entries that the batch has after the preprocessing.
    """
    sampler = cfg.sampler
    if sampler.kind == "shared":
        return None
    sample = buffer.sample_actor
    if sampler.kind == "direct":
        sample = CandidatePool(
            buffer,
            sampler.num_candidates,
            sampler.mode,
            score=lambda candidates: uncertainty(perception(candidates)),
        ).sample
    others = [entry for entry in entries if entry not in perception.out_keys]
    return partial(sample, keys=[*perception.in_keys, *others])
