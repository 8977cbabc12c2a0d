"""Scores every transition of a buffer with the current networks."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.fast import Backend
from vmfer_recipes.forking.sessions import PartialSession
from vmfer_recipes.training.agent import Agent

__all__ = ["score_buffer"]

_CHUNK = 2048


def score_buffer(agent: Agent, recipe: ModuleType, backend: Backend) -> bool:
    """Gives the actor's sampler the signal of every stored transition.

    The recipe's own update of the actor measures factors and gradient norms, and that of the
    critics measures TD errors. Both run once over the whole buffer, in chunks, without a step of an
    optimizer.

    Args:
        agent: the agent. Statistics of its networks, such as those of batch normalization, may
            change.
        recipe: the module of its algorithm.
        backend: the components of its training loop.

    Returns:
        whether the sampler stores a signal.
    """
    sampler = agent.buffer.actor_sampler
    if agent.sample_actor is None or type(sampler).update_priority is Sampler.update_priority:
        return False
    signal = getattr(sampler, "signal", "factor")
    if signal is None:
        return False
    session = PartialSession(backend)
    # The newest value only: a running average would still hold the factor of a new transition.
    smoothing = getattr(sampler, "smoothing", None)
    if smoothing:
        sampler.smoothing = 0.0  # type: ignore[attr-defined]
    for slots in torch.arange(len(agent.buffer)).split(_CHUNK):
        chunk = _Chunk(agent.buffer, slots)
        scored = dataclasses.replace(agent, buffer=chunk, sample_actor=chunk.sample)  # type: ignore[arg-type]
        if signal == "td_error":
            recipe.update_critics(session, scored)
        else:
            recipe.update_actor(session, scored, scored.critic_batch())
    if smoothing:
        sampler.smoothing = smoothing  # type: ignore[attr-defined]
    return True


class _Chunk:
    """A buffer whose only batch are the given slots. It stores the signals of the actor only.

    Args:
        buffer: the whole buffer.
        slots: the slots.
    """

    def __init__(self, buffer: ActorCriticReplayBuffer, slots: Tensor) -> None:
        self._buffer = buffer
        self._slots = slots

    def sample(self) -> TensorDictBase:
        """The transitions of the slots, as they were collected."""
        batch = self._buffer.read_rows(self._slots, None)
        return batch.set("index", self._slots)

    def update_priority(self, *signal: Any) -> None:
        """Keeps the priorities of the critics."""

    def update_actor_priority(self, *signal: Any) -> None:
        """Stores the signals of the slots."""
        self._buffer.update_actor_priority(*signal)
