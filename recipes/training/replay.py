"""The replay buffer of a recipe: one storage, and a sampler each for critics and actor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
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
from vmfer_recipes.training.errors import diverged
from vmfer_recipes.training.networks import Perception
from vmfer_recipes.training.options import Config

__all__ = [
    "CheckpointedReplay",
    "generation",
    "make_actor_batches",
    "make_replay_buffer",
    "prioritize",
    "stores_factors",
]


def make_replay_buffer(env: GymWrapper, cfg: Config, backend: Backend) -> ActorCriticReplayBuffer:
    """The buffer that ``replay=`` and ``sampler=`` ask for.

    Its random generator is its own: how often a sampler draws does not move the streams of the
    environment and of the exploration.
    """
    is_alone = cfg.collector.kind == "single"  # and counters need not be seen by other processes
    parts: dict[str, Callable[[], Any]] = {
        "storage": partial(backend.storage, cfg.replay.buffer_size, compilable=is_alone),
        # Workers may overwrite what the learner is about to score.
        "writer": partial(backend.writer, compilable=is_alone, track_generations=not is_alone),
        "critic_sampler": partial(_critic_sampler, cfg.replay),
        "actor_sampler": partial(_actor_sampler, cfg.sampler),
    }
    if cfg.collector.kind == "ray":
        from vmfer_recipes.training.ray_workers import RemoteReplay

        return RemoteReplay(cfg, **parts)  # type: ignore[return-value]  # it has its methods
    options = {
        **{name: make() for name, make in parts.items()},
        "batch_size": cfg.batch_size,
        "generator": torch.Generator().manual_seed(cfg.seed),
    }
    buffer: ActorCriticReplayBuffer
    if cfg.replay.kind == "her":
        buffer = HindsightReplayBuffer(
            reward_fn=HindsightReplayBuffer.gymnasium_reward(env._env),
            her_ratio=cfg.replay.her_ratio,
            strategy=cfg.replay.strategy,
            **options,
        )
    else:
        buffer = ActorCriticReplayBuffer(**options)
    buffer._transform = None  # even an empty one takes a copy of all that is written
    return buffer


def _critic_sampler(cfg: Config) -> Sampler:
    if cfg.kind == "per":
        return PrioritizedSampler(cfg.buffer_size, alpha=cfg.alpha, beta=cfg.beta)
    if cfg.kind == "per_rank":
        return RankPrioritizedSampler(alpha=cfg.alpha, beta=cfg.beta)
    return RandomSampler()


def _actor_sampler(cfg: Config) -> Sampler:
    if stores_factors(cfg):
        return VMFSampler(cfg.mode, initial_factor=cfg.initial_factor, smoothing=cfg.smoothing)
    return RandomSampler()


def stores_factors(cfg: Config) -> bool:
    """Whether a ``sampler=`` needs the factors of the transitions that the actor has used."""
    return cfg.kind == "vmf"


def generation(batch: TensorDictBase) -> Tensor | None:
    """How often the slots of a batch had been written, where several processes write."""
    return batch.get("index_generation", None)


def prioritize(buffer: ActorCriticReplayBuffer, batch: TensorDictBase, td_error: Tensor) -> None:
    """Tells the critics' sampler by how much they were wrong about a batch."""
    try:
        buffer.update_priority(batch["index"], td_error, generation(batch))
    except ValueError as error:
        if td_error.isfinite().all():
            raise
        raise diverged("a TD error is not finite") from error


def make_actor_batches(
    buffer: ActorCriticReplayBuffer,
    perception: Perception,
    uncertainty: VMFUncertainty,
    cfg: Config,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """How the actor's batch comes about, as ``sampler=`` asks for: a function of the critics'."""
    sampler = cfg.sampler
    if sampler.kind == "shared":
        return lambda critic_batch: critic_batch.select("observation", "index")
    sample = buffer.sample_actor
    if sampler.kind == "vmf" and sampler.pool_size is not None:
        sample = CandidatePool(buffer, sampler.pool_size, sampler.mode).sample
    elif sampler.kind == "direct":
        sample = CandidatePool(
            buffer,
            sampler.num_candidates,
            sampler.mode,
            score=lambda candidates: uncertainty(perception(candidates)),
        ).sample
    return lambda critic_batch: perception(sample(keys=perception.in_keys))


class CheckpointedReplay:
    """Gives a buffer a state of plain tensors that holds the filled rows only.

    Args:
        buffer: the buffer; it must be empty when a state is loaded.
    """

    def __init__(self, buffer: ActorCriticReplayBuffer) -> None:
        self._buffer = buffer

    def state_dict(self) -> dict[str, Any]:
        """Rows, cursor, both samplers and the random generator."""
        buffer = self._buffer
        if not isinstance(buffer, ActorCriticReplayBuffer):
            return buffer.checkpoint_state()
        with buffer._in_step():  # with workers that go on writing
            # A copy: a view would drag the unfilled rest of the storage into the file.
            rows = buffer.storage[: len(buffer)].clone() if len(buffer) else TensorDict()
            return {
                "rows": rows.to_dict(),
                "writer": dict(buffer.writer.state_dict()),
                "critic_sampler": _sampler_state(buffer.critic_sampler, len(buffer)),
                "actor_sampler": _sampler_state(buffer.actor_sampler, len(buffer)),
                "generator": buffer._rng.get_state(),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fills the empty buffer."""
        buffer = self._buffer
        if not isinstance(buffer, ActorCriticReplayBuffer):
            buffer.load_checkpoint_state(state)
            return
        rows = TensorDict(state["rows"]).auto_batch_size_(1)
        if rows.batch_size:
            buffer.extend(rows)
        buffer.writer.load_state_dict(state["writer"])
        _load_sampler_state(buffer.critic_sampler, state["critic_sampler"])
        _load_sampler_state(buffer.actor_sampler, state["actor_sampler"])
        buffer._rng.set_state(state["generator"])


def _sampler_state(sampler: Sampler, length: int) -> dict[str, Any]:
    if not isinstance(sampler, PrioritizedSampler):
        return sampler.state_dict()
    # TorchRL's own state holds C++ trees, which only pickle can save. The inner nodes of a tree
    # follow from its leaves.
    slots = torch.arange(length)
    leaves = torch.as_tensor(sampler._sum_tree[slots]) if length else torch.empty(0)
    return {"leaves": leaves, "max_priority": sampler._max_priority}


def _load_sampler_state(sampler: Sampler, state: dict[str, Any]) -> None:
    if not isinstance(sampler, PrioritizedSampler):
        sampler.load_state_dict(state)
        return
    slots = torch.arange(len(state["leaves"]))
    if len(slots):
        sampler._sum_tree[slots] = state["leaves"]
        sampler._min_tree[slots] = state["leaves"]
    sampler._max_priority = state["max_priority"]
