"""The state in which a fork starts: that of the checkpoint, with the random numbers of a draw."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.optim import Optimizer
from torchrl.checkpoint import GlobalRNGState

from torchrl_vmfer import ActorCriticReplayBuffer
from torchrl_vmfer.samplers.adapters import sampler_state
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.plugins import import_module
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.state import seed_generators
from vmfer_recipes.fork.plan import Fork
from vmfer_recipes.fork.sources import Source
from vmfer_recipes.run.checkpoints import Stateful, load_checkpoint, load_parts
from vmfer_recipes.run.directory import identity
from vmfer_recipes.run.log import EMPTY
from vmfer_recipes.run.session import Averages, TrainingSession

_CHUNK = 2048


def load_source(source: Source) -> dict[str, Any]:
    """Loads a checkpoint."""
    try:
        return load_checkpoint(source.file)
    except Exception as error:
        raise UserError(
            f"The checkpoint {source.file} cannot be read ({first_line(error)}): choose another "
            "one with at=."
        ) from error


def load_source_parts(components: dict[str, Any], parts: dict[str, Any], source: Source) -> None:
    """Loads the parts of the checkpoint of a source into components of the same names."""
    fault = (
        f"The checkpoint {source.file} does not match {source.cfg.algorithm} with the "
        f"configuration in {source.run_dir}/config.yaml"
    )
    load_parts(components, parts, fault, "choose another run")


class ActorDraws:
    """Draws the actor's batches with a separate random generator.

    Samplers consume different numbers of random numbers per batch. If actor and critics shared a
    generator, the critics' batches of two arms would differ after the first actor update.
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


def recipe_of(cfg: TrainingConfig) -> ModuleType:
    """The module of a built-in or custom algorithm."""
    name = cfg.algorithm
    if name in algorithms():
        return importlib.import_module(f"vmfer_recipes.{name}")
    module = import_module(name, f"algorithm={name}")
    needed = ("train", "update_critics", "update_actor")
    # An imported `make_agent` would leave out what `main` adds to it.
    made_by = getattr(getattr(module, "make_agent", None), "__module__", None)
    if made_by != name or not all(hasattr(module, each) for each in needed):
        raise UserError(
            f"Forks cannot continue runs of {name}: define make_agent(cfg) in its module, and "
            f"define or import {', '.join(needed)}."
        )
    return module


def make_agent(cfg: TrainingConfig) -> Agent:
    """Makes the agent of a fork."""
    agent = recipe_of(cfg).make_agent(cfg)
    if agent.sample_actor is None:
        return agent
    return dataclasses.replace(agent, sample_actor=ActorDraws(agent.buffer, agent.sample_actor))


class PartialSession(TrainingSession):
    """A session in which at most one optimizer takes steps, and nothing is written."""

    def __init__(self, optimizer: Optimizer | None = None) -> None:
        self.metrics = Averages()
        # Diagnostics are slow: with this metric, they count as measured.
        self.metrics.add(factor_mean=torch.zeros(()))
        self._optimizer = optimizer

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """No steps of an environment."""
        return iter(())

    def descend(self, optimizer: Optimizer, loss: Tensor) -> None:
        """Takes one gradient step, unless the optimizer is another one."""
        if optimizer is self._optimizer:
            super().descend(optimizer, loss)


def with_batches(
    agent: Agent,
    sample: Callable[[], TensorDictBase],
    store: Callable[..., None] = lambda *signal: None,
    **parts: Any,
) -> Agent:
    """Copies an agent. The copy draws with ``sample`` and passes its signals only to ``store``."""
    replay: Any = SimpleNamespace(
        sample=sample, update_priority=lambda *signal: None, update_actor_priority=store
    )
    return dataclasses.replace(agent, buffer=replay, compiled=None, **parts)


def starting_state(checkpoint: dict[str, Any], agent: Agent, fork: Fork) -> dict[str, Any]:
    """Returns the first checkpoint of a fork. The agent is left in an arbitrary state.

    Networks, optimizers, transitions and the running episode are those of the source. The actor's
    sampler is that of the arm, with current signals of all transitions. All random generators are
    seeded by the number of the draw, the same for all arms. Tables and metrics are empty.
    """
    seed, step = fork.source.seed, fork.source.step
    seeds = np.random.SeedSequence([seed, step, fork.draw]).generate_state(4)
    first, draws, actor_draws, environment = map(int, seeds)
    components = {name: part for name, part in agent.components().items() if name != "policy"}
    # Copied, because optimizers and environments keep the tensors that they are given.
    parts = dict(checkpoint["parts"])
    replay = parts.pop("replay")  # a buffer copies its state
    parts = copy.deepcopy(parts)
    parts["replay"] = {
        **replay,
        "actor_sampler": _actor_sampler_state(agent),
        "generator": (torch.Generator().manual_seed(draws).get_state(), "cpu"),
    }
    parts["actor_draws"] = {"generator": torch.Generator().manual_seed(actor_draws).get_state()}
    load_source_parts(components, parts, fork.source)
    _report_transitions(agent.buffer)
    # Stochastic policies sample actions to compute the scores: the same ones in all draws.
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
    _score_buffer(agent, fork.cfg)
    parts["replay"]["actor_sampler"] = _actor_sampler_state(agent)
    if agent.collector is not None:
        agent.collector.reseed(environment)
        parts["collector"] = agent.collector.state_dict()
    seed_generators(first)
    parts |= {
        "random": GlobalRNGState().state_dict(),
        "metrics": Averages().state_dict(),
        **EMPTY,
    }
    return {
        "step": step,
        "run": identity(fork.cfg),
        "evaluated": step,
        "policy": checkpoint.get("policy"),
        "parts": parts,
    }


def _actor_sampler_state(agent: Agent) -> dict[str, Any]:
    buffer = agent.buffer
    return sampler_state(buffer.actor_sampler, len(buffer), "actor_sampler")


def _report_transitions(buffer: ActorCriticReplayBuffer) -> None:
    """Reports all stored transitions to the actor's sampler, the oldest first.

    A new sampler then knows the same slots, in the same order, as one that saw all writes.
    """
    slots = torch.arange(len(buffer)).roll(-(buffer.write_count % len(buffer)))
    buffer.actor_sampler.mark_update(slots, storage=buffer.storage)
    buffer.actor_sampler.extend(slots)


def _score_buffer(agent: Agent, cfg: TrainingConfig) -> None:
    """Gives the actor's sampler the signal of every stored transition, if it uses one.

    The recipe's update functions measure the signal, in chunks and without optimizer steps.
    """
    if agent.signal is None:
        return
    recipe, session, buffer = recipe_of(cfg), PartialSession(), agent.buffer
    sampler: Any = buffer.actor_sampler
    # Before the first score, priorities are only defaults: smoothing is turned off.
    parts = getattr(sampler, "parts", [sampler])
    smoothing = {part: part.smoothing for part in parts if hasattr(part, "smoothing")}
    for part in smoothing:
        part.smoothing = 0.0
    for slots in torch.arange(len(buffer)).split(_CHUNK):

        def sample(slots: Tensor = slots) -> TensorDictBase:
            return buffer.read_rows(slots, None).set("index", slots)

        store = buffer.update_actor_priority
        scored = with_batches(agent, sample, store, sample_actor=sample)
        if agent.signal == "td_error":
            recipe.update_critics(session, scored)
        else:
            recipe.update_actor(session, scored, scored.critic_batch())
    for part, value in smoothing.items():
        part.smoothing = value
