"""Gives the sampler of an arm the transitions of a checkpoint and their signals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.fork.sessions import PartialSession

__all__ = ["report_transitions", "score_buffer"]

_CHUNK = 2048


def report_transitions(buffer: ActorCriticReplayBuffer) -> None:
    """Reports all stored transitions to the actor's sampler, the oldest first.

    A new sampler then knows the same slots, in the same order, as one that saw all writes.
    """
    count = len(buffer)
    if count:
        slots = torch.arange(count).roll(-(buffer.write_count % count))
        buffer.actor_sampler.mark_update(slots, storage=buffer.storage)
        buffer.actor_sampler.extend(slots)


def score_buffer(agent: Agent, recipe: ModuleType) -> None:
    """Gives the actor's sampler the signal of every stored transition, if it uses one.

    The recipe's own update of the actor measures factors and gradient norms, and that of the
    critics measures TD errors. Both run once over the whole buffer, in chunks, without a step of an
    optimizer.

    Args:
        agent: the agent. Statistics of its networks, such as those of batch normalization, may
            change.
        recipe: the module of its algorithm.
    """
    if agent.signal is None:
        return
    session = PartialSession()
    with _without_smoothing(agent.buffer.actor_sampler):
        for slots in torch.arange(len(agent.buffer)).split(_CHUNK):
            chunk: Any = _Chunk(agent.buffer, slots)
            scored = dataclasses.replace(
                agent, buffer=chunk, sample_actor=chunk.sample, compiled=None
            )
            if agent.signal == "td_error":
                recipe.update_critics(session, scored)
            else:
                recipe.update_actor(session, scored, scored.critic_batch())


@contextmanager
def _without_smoothing(sampler: Sampler) -> Iterator[None]:
    """Turns off the smoothing of priorities: before the first score, they are only defaults."""
    smoothing = {
        part: part.smoothing
        for part in getattr(sampler, "parts", [sampler])
        if hasattr(part, "smoothing")
    }
    for part in smoothing:
        part.smoothing = 0.0
    try:
        yield
    finally:
        for part, value in smoothing.items():
            part.smoothing = value


class _Chunk:
    """A view of a buffer whose only batch is the given slots. It stores only signals for the actor.

    Args:
        buffer: the whole buffer.
        slots: the slots.
    """

    def __init__(self, buffer: ActorCriticReplayBuffer, slots: Tensor) -> None:
        self._buffer = buffer
        self._slots = slots

    def sample(self) -> TensorDictBase:
        """The transitions of the slots. Hindsight replay relabels them, as in training."""
        batch = self._buffer.read_rows(self._slots, None)
        return batch.set("index", self._slots)

    def update_priority(self, *signal: Any) -> None:
        """Ignores new priorities of the critics' sampler."""

    def update_actor_priority(self, *signal: Any) -> None:
        """Stores the signals of the slots."""
        self._buffer.update_actor_priority(*signal)
