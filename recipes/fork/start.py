"""The state in which a fork starts: that of the checkpoint, with the random numbers of a draw."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import GlobalRNGState

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.plain_state import load_checked
from torchrl_vmfer.samplers.adapters import sampler_state
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.fork.plan import Fork
from vmfer_recipes.fork.scoring import report_transitions, score_buffer
from vmfer_recipes.fork.sources import Source
from vmfer_recipes.run.checkpoints import MismatchError, load_parts
from vmfer_recipes.run.directory import identity
from vmfer_recipes.run.progress import Averages

__all__ = [
    "ActorDraws",
    "ForkedAgent",
    "load_source",
    "load_source_parts",
    "make_agent",
    "recipe_of",
    "starting_state",
]

# The required parts of a checkpoint. Later versions may add others.
_NEEDED = (
    *("observations", "loss", "critic_optimizer", "actor_optimizer", "alpha_optimizer"),
    *("replay", "collector"),
)


def load_source(source: Source, **kwargs: Any) -> dict[str, Any]:
    """Loads a checkpoint. The arguments are those of ``torch.load``."""
    try:
        state = load_checked(source.file, **kwargs)
        if not (isinstance(state["parts"], dict) and state["step"] == source.step):
            raise ValueError(f"it is not a checkpoint of step {source.step}")
    except Exception as error:
        raise UserError(
            f"The checkpoint {source.file} cannot be read ({first_line(error)}): choose another "
            "one with at=."
        ) from error
    return state


class ActorDraws:
    """Draws the actor's batches with a separate random generator.

    Samplers consume different numbers of random numbers per batch. If actor and critics shared a
    generator, the critics' batches of two arms would differ after the first actor update.

    Args:
        buffer: the replay buffer.
        sample: draws the actor's batch from it.
    """

    def __init__(
        self, buffer: ActorCriticReplayBuffer, sample: Callable[[], TensorDictBase]
    ) -> None:
        self._buffer = buffer
        self._sample = sample
        self._generator = torch.Generator()

    def __call__(self) -> TensorDictBase:
        """Draws a batch."""
        common = self._buffer.generator
        self._buffer.set_rng(self._generator)
        try:
            return self._sample()
        finally:
            self._buffer.set_rng(common)

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the generator."""
        self._generator.set_state(state["generator"])


@dataclass
class ForkedAgent(Agent):
    """An agent whose actor's batches are drawn with a separate random generator."""

    def components(self) -> dict[str, Any]:
        """Those of every agent, and the random generator of the actor's draws."""
        components = super().components()
        if isinstance(self.sample_actor, ActorDraws):
            components["actor_draws"] = self.sample_actor
        return components


def recipe_of(cfg: TrainingConfig) -> ModuleType:
    """The module of the algorithm."""
    return importlib.import_module(f"vmfer_recipes.{cfg.algorithm}")


def make_agent(cfg: TrainingConfig) -> ForkedAgent:
    """Makes the agent of a fork."""
    agent = recipe_of(cfg).make_agent(cfg)
    parts = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    if agent.sample_actor is not None:
        parts["sample_actor"] = ActorDraws(agent.buffer, agent.sample_actor)
    return ForkedAgent(**parts)


def starting_state(checkpoint: dict[str, Any], agent: ForkedAgent, fork: Fork) -> dict[str, Any]:
    """The first checkpoint of a fork.

    Networks, optimizers, transitions and the running episode are those of the source. The actor's
    sampler is that of the arm. If it stores a signal, every transition is scored by the networks of
    the source, so that all arms start with current signals. All random generators are seeded by
    the draw, the same for all arms. Tables and metrics are empty.

    Args:
        checkpoint: the checkpoint of the source.
        agent: the agent of the fork; its state is arbitrary afterwards.
        fork: the fork.
    """
    seed, step = fork.source.seed, fork.source.step
    seeds = np.random.SeedSequence([seed, step, fork.draw]).generate_state(4)
    first, draws, actor_draws, environment = map(int, seeds)
    components = {name: part for name, part in agent.components().items() if name != "policy"}
    # Copied, because optimizers and environments keep the tensors that they are given.
    parts = _parts(copy.deepcopy(checkpoint["parts"]), components, fork.source)
    parts["replay"] = {
        **parts["replay"],
        "actor_sampler": _actor_sampler_state(agent),
        "generator": (torch.Generator().manual_seed(draws).get_state(), "cpu"),
    }
    parts["actor_draws"] = {"generator": torch.Generator().manual_seed(actor_draws).get_state()}
    load_source_parts(components, parts, fork.source)
    report_transitions(agent.buffer)
    # Stochastic policies sample actions to compute the scores: the same ones in all draws.
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
    score_buffer(agent, recipe_of(fork.cfg))
    parts["replay"]["actor_sampler"] = _actor_sampler_state(agent)
    if agent.collector is not None:
        agent.collector.reseed(environment)
        parts["collector"] = agent.collector.state_dict()
    random.seed(first)
    np.random.seed(first)  # noqa: NPY002
    torch.manual_seed(first)
    empty = {"rows": 0, "columns": []}
    parts |= {
        "random": GlobalRNGState().state_dict(),
        "metrics": Averages().state_dict(),
        "evaluations": empty,
        "training": empty,
        "best": {},
    }
    return {
        "step": step,
        "run": identity(fork.cfg),
        "evaluated": step,
        "policy": checkpoint.get("policy"),
        "parts": parts,
    }


def _actor_sampler_state(agent: ForkedAgent) -> dict[str, Any]:
    buffer = agent.buffer
    return sampler_state(buffer.actor_sampler, len(buffer), "actor_sampler")


def _parts(parts: dict[str, Any], components: dict[str, Any], source: Source) -> dict[str, Any]:
    """The parts of a checkpoint, with initial states for parts that later versions added."""
    for name, part in components.items():
        if name not in parts:
            if name in _NEEDED:
                raise _unfit(source, f"it has no {name}")
            parts[name] = part.state_dict()
    return parts


def load_source_parts(components: dict[str, Any], parts: dict[str, Any], source: Source) -> None:
    """Loads the parts of the checkpoint of a source into components of the same names."""
    try:
        load_parts(components, parts)
    except MismatchError as error:
        raise _unfit(source, str(error)) from error


def _unfit(source: Source, reason: str) -> UserError:
    return UserError(
        f"The checkpoint {source.file} does not match {source.cfg.algorithm} with the "
        f"configuration in {source.run_dir}/config.yaml ({reason}): choose another run."
    )
