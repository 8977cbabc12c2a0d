"""Frozen forks: only the actor is updated; critics, targets and transitions do not change."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import GlobalRNGState

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.agent.backend import Backend, make_backend
from vmfer_recipes.agent.networks import write_policy
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import EnvironmentPart
from vmfer_recipes.fork.plan import Fork, ForkDirectory, Moment
from vmfer_recipes.fork.sessions import PartialSession
from vmfer_recipes.fork.start import (
    ForkedAgent,
    load_source_parts,
    make_agent,
    recipe_of,
    starting_state,
)
from vmfer_recipes.run.evaluation import Evaluation, evaluate
from vmfer_recipes.run.logs import RunLog
from vmfer_recipes.run.session import EVALUATION_SEED

__all__ = ["evaluate_checkpoint", "train_actor"]

# The parts of a checkpoint that an evaluation depends on.
_EVALUATED = ("observations", "loss", "evaluation")


def train_actor(fork: Fork, checkpoint: dict[str, Any], updates: int) -> None:
    """Updates the actor a number of times and evaluates it.

    The optimizer of the actor continues; the temperature of a stochastic policy does not change.

    Args:
        fork: the fork.
        checkpoint: the checkpoint of its source.
        updates: the number of updates.
    """
    cfg, directory = fork.cfg, ForkDirectory(fork.cfg)
    with directory.lock():
        if fork.is_finished:  # by the process that previously held the lock
            return
        backend = _backend(cfg)
        agent = make_agent(cfg, backend)
        parts = starting_state(checkpoint, agent, fork)["parts"]
        components = {name: part for name, part in agent.components().items() if name != "policy"}
        load_source_parts({**components, "random": GlobalRNGState()}, parts, fork.source)
        frozen = dataclasses.replace(agent, buffer=_FrozenReplay(agent.buffer), compiled=None)  # type: ignore[arg-type]
        session = PartialSession(backend, agent.actor_optimizer, updates)
        for _ in session.steps(**agent.components()):
            recipe_of(cfg).update_actor(session, frozen, frozen.critic_batch())
        result = _evaluated(agent, cfg, parts)
        directory.write_config()
        with directory.writing():
            log = RunLog(fork.path, cfg)
            log.clear()
            log.write_evaluation(cfg.total_frames, result)
            write_policy(agent.policy, agent.env, cfg, fork.path / "policy.pt", cfg.total_frames)
            (fork.path / "finished").touch()


def evaluate_checkpoint(moment: Moment, checkpoint: dict[str, Any]) -> Evaluation:
    """Evaluates the policy of a checkpoint, as its forks are evaluated.

    Args:
        moment: the checkpoint and its forks.
        checkpoint: its contents.
    """
    cfg = moment.forks[0].cfg
    agent = make_agent(cfg, _backend(cfg))
    parts = copy.deepcopy({name: checkpoint["parts"].get(name) for name in _EVALUATED})
    load_source_parts(
        {"observations": agent.observations, "loss": agent.loss}, parts, moment.source
    )
    return _evaluated(agent, cfg, parts)


def _backend(cfg: TrainingConfig) -> Backend:
    torch.set_num_threads(cfg.threads)
    return make_backend(cfg.fast)


def _evaluated(agent: ForkedAgent, cfg: TrainingConfig, parts: dict[str, Any]) -> Evaluation:
    env = make_environment(cfg.env, cfg.seed, cfg.replay.has_goals)
    EnvironmentPart(env).load_state_dict(parts["evaluation"])
    seed, longest = EVALUATION_SEED + cfg.seed, cfg.max_eval_steps
    return evaluate(agent.policy, env, cfg.num_eval_episodes, seed, max_steps=longest)


class _FrozenReplay:
    """A replay buffer that does not change.

    Args:
        buffer: the buffer.
    """

    def __init__(self, buffer: ActorCriticReplayBuffer) -> None:
        self._buffer = buffer

    def sample(self) -> TensorDictBase:
        """Draws a batch."""
        return self._buffer.sample()

    def update_priority(self, *signal: Any) -> None:
        """Ignores new priorities of the critics' sampler."""

    def update_actor_priority(self, *signal: Any) -> None:
        """Ignores new signals for the actor's sampler."""
