"""The signals by which samplers draw the actor's batch, computed for the slots of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer._torchrl import stored_rows
from torchrl_vmfer.critics import SCORES, Critics
from torchrl_vmfer.samplers.adapters import signal_of
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.plugins import import_module
from vmfer_recipes.config.training import TrainingConfig

Score = Callable[[Any, TensorDictBase], Tensor]

# The signals that the updates measure anyway, and their descriptions in error messages.
MEASURED = {
    "factor": "a sampling factor",
    "td_error": "a TD error",
    "gradient_norm": "the norm of an action gradient",
    "saturation": "an action of the policy",
}
_OF_EPISODES = ("return", "advantage")
WORDS = (*MEASURED, *(name for name in SCORES if name not in MEASURED), *_OF_EPISODES)


def actor_signal(buffer: ActorCriticReplayBuffer, cfg: TrainingConfig) -> str | None:
    """What the actor's sampler stores: one of ``WORDS``, the path of a function, or ``None``.

    It is the attribute ``signal`` of the sampler. Without this attribute, a sampler that uses
    priorities receives factors.
    """
    signal = signal_of(buffer.actor_sampler)
    if signal is not None and signal not in WORDS and "." not in str(signal):
        raise UserError(
            f"sampler={cfg.sampler.name} has signal={signal!r}, but the recipes provide "
            f"{', '.join(WORDS)}: set one of these, or None, or the import path of a function."
        )
    if signal in _OF_EPISODES and (
        cfg.num_envs > 1 or not cfg.collector.is_single or cfg.replay.has_goals
    ):
        raise UserError(
            f"signal={signal} requires whole episodes in the order of the replay buffer: use "
            "num_envs=1, collector=single and a replay= without relabeled goals."
        )
    return signal


def find_score(signal: str, where: str) -> Score:
    """The function ``score(loss, batch) -> [batch]`` of a built-in or custom signal."""
    if signal in SCORES:
        return lambda loss, batch: SCORES[signal](Critics(loss, batch))
    module, _, name = signal.rpartition(".")
    score = getattr(import_module(module, f"{where}={signal}"), name, None)
    if not callable(score):
        raise UserError(f"{where}={signal}: {module} has no function {name}.")

    def checked(loss: Any, batch: TensorDictBase) -> Tensor:
        values = score(loss, batch)
        if not isinstance(values, Tensor) or values.shape != (len(batch),):
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UserError(
                f"{where}={signal} returned the shape {shape} for {len(batch)} transitions: "
                "return one number for each."
            )
        return values.detach()

    return checked


def make_score(
    signal: str | None,
    buffer: ActorCriticReplayBuffer,
    observations: Observations,
    loss: Any,
    gamma: float,
) -> Callable[[Tensor], Tensor] | None:
    """The signal as a function of slots; ``None`` if the updates measure it."""
    if signal is None or signal in MEASURED:
        return None

    def read(index: Tensor) -> TensorDictBase:
        return observations(buffer.read_rows(index, None).set("index", index))

    if signal in _OF_EPISODES:
        return lambda index: _episode_scores(signal, index, buffer, read, loss, gamma)
    score = find_score(signal, "signal")
    return lambda index: score(loss, read(index))


def _episode_scores(
    signal: str, index: Tensor, buffer: ActorCriticReplayBuffer, read: Any, loss: Any, gamma: float
) -> Tensor:
    """Returns or advantages of the stored episodes. An unfinished one ends with the newest row.

    The return is the sum of the rewards of the whole episode. The advantage is the discounted sum
    from a transition on, and the critics' value of the state in which the episode was cut off,
    minus their value of the transition's state. Values are means over the critics.
    """
    rows: Any = stored_rows(buffer.storage)
    count, following = len(buffer), rows["next"]
    oldest = buffer.write_count % count  # 0 until the buffer is full
    reward, done = (following[key][:count].reshape(-1).numpy() for key in ("reward", "done"))
    places = (index.numpy() - oldest) % count  # by age
    ends = np.append(np.sort((np.flatnonzero(done) - oldest) % count), count - 1)
    which = np.searchsorted(ends, places)
    last = ends[which]
    is_advantage = signal == "advantage"
    first = places if is_advantage else np.append(0, ends + 1)[which]
    found, known = np.empty(len(places)), {}
    for i, bounds in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if bounds not in known:
            rewards = reward[(np.arange(bounds[0], bounds[1] + 1) + oldest) % count].astype(float)
            weights = gamma ** np.arange(len(rewards)) if is_advantage else 1.0
            known[bounds] = (weights * rewards).sum()
        found[i] = known[bounds]
    values = torch.from_numpy(found)
    if not is_advantage:
        return values
    final = read(torch.from_numpy((last + oldest) % count))["next"]
    beyond = Critics(loss, final).values.mean(0).double() * ~final["terminated"].reshape(-1)
    discount = torch.from_numpy(gamma ** (last - places + 1.0)).to(beyond)
    return values.to(beyond) + discount * beyond - Critics(loss, read(index)).values.mean(0)
