"""Runs the forks of a plan that are not finished, one after the other.

A live fork continues full training. A frozen fork updates only the actor: critics, targets and
transitions do not change.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torchrl.checkpoint import GlobalRNGState

from torchrl_vmfer.plain_state import save_file
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.agent.networks import policy_data
from vmfer_recipes.config.errors import UserError, counted, unwritable
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import load_environment_state
from vmfer_recipes.fork.plan import Fork, ForkDirectory, Moment, Plan
from vmfer_recipes.fork.start import (
    PartialSession,
    load_source,
    load_source_parts,
    make_agent,
    recipe_of,
    starting_state,
    with_batches,
)
from vmfer_recipes.run.checkpoints import Checkpoints
from vmfer_recipes.run.evaluation import Evaluation, evaluate
from vmfer_recipes.run.files import LockedError, replacing
from vmfer_recipes.run.log import RunLog
from vmfer_recipes.run.session import EVALUATION_SEED, Session

# The parts of a checkpoint that an evaluation depends on.
_EVALUATED = ("observations", "loss", "evaluation")


def run_forks(plan: Plan) -> list[UserError]:
    """Runs all forks that are not finished, except those that another process runs.

    Returns:
        the errors of forks that failed, such as one whose networks diverged.
    """
    failures, elsewhere = [], []
    moments = [each for each in plan.moments if not all(fork.is_finished for fork in each.forks)]
    for moment in moments:  # all of them, before anything is written
        load_source(moment.source)
    total = len(plan.forks)
    number = sum(fork.is_finished for fork in plan.forks)
    for moment in moments:
        checkpoint = load_source(moment.source)
        if not moment.record.exists():
            _write_record(moment, checkpoint)
        for fork in [fork for fork in moment.forks if not fork.is_finished]:
            number += 1
            place = f"seed {fork.source.seed}, step {fork.source.step:,}"
            title = f"{place}, {fork.arm.name}, draw {fork.draw}"
            print(f"Fork {number} of {total}: {title}.", file=sys.stderr)
            try:
                if plan.options.mode == "live":
                    _continue_training(fork, checkpoint)
                else:
                    _train_actor(fork, checkpoint, plan.options.length)
            except LockedError:
                elsewhere.append(fork)
            except UserError as error:
                print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
                failures.append(error)
    if running := sum(not fork.is_finished for fork in elsewhere):
        print(
            f"Another process runs {counted(running, 'fork')}, skipped here: run the same "
            "command when it has ended.",
            file=sys.stderr,
        )
    return failures


def _write_record(moment: Moment, checkpoint: dict[str, Any]) -> None:
    """Evaluates a checkpoint as its forks are evaluated, and records the result."""
    cfg, source = moment.forks[0].cfg, moment.source
    torch.set_num_threads(cfg.threads)
    agent = make_agent(cfg)
    parts = copy.deepcopy({name: checkpoint["parts"].get(name) for name in _EVALUATED})
    load_source_parts({"observations": agent.observations, "loss": agent.loss}, parts, source)
    record = {
        "run": str(source.run_dir),
        "step": source.step,
        "fingerprint": source.fingerprint,
        **moment.settings,
        **_evaluated(agent, cfg, parts)._asdict(),
    }
    try:
        moment.path.mkdir(parents=True, exist_ok=True)
        with replacing(moment.record) as file:
            file.write(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise unwritable(moment.path, error) from error


def _continue_training(fork: Fork, checkpoint: dict[str, Any]) -> None:
    """Trains for ``steps`` environment steps, or resumes a fork that was stopped."""
    checkpoints = _ForkCheckpoints(fork.path / "checkpoint")
    session = _ForkSession(fork.cfg, directory=ForkDirectory(fork.cfg), checkpoints=checkpoints)
    if session.finished:
        return
    agent = make_agent(fork.cfg)
    checkpoints.first = lambda: starting_state(checkpoint, agent, fork)
    recipe_of(fork.cfg).train(fork.cfg, session, agent)


class _ForkCheckpoints(Checkpoints):
    """The checkpoints of a fork. Before it has saved one, ``first`` makes its starting state."""

    first: Callable[[], dict[str, Any]]

    def load(self) -> dict[str, Any] | None:
        """The newest state of the fork, or the one in which it starts."""
        state = super().load()
        return self.first() if state is None else state


class _ForkSession(Session):
    """A session that ends with an evaluation and the policy, without a figure or a summary."""

    draws = False

    def report(self, *results: Any) -> None:
        """Prints nothing."""


def _train_actor(fork: Fork, checkpoint: dict[str, Any], updates: int) -> None:
    """Updates the actor a number of times and evaluates it.

    The optimizer of the actor continues; the temperature of a stochastic policy does not change.
    """
    cfg, directory = fork.cfg, ForkDirectory(fork.cfg)
    with directory.lock():
        if fork.is_finished:  # by the process that previously held the lock
            return
        torch.set_num_threads(cfg.threads)
        agent = make_agent(cfg)
        parts = starting_state(checkpoint, agent, fork)["parts"]
        components = {name: part for name, part in agent.components().items() if name != "policy"}
        load_source_parts({**components, "random": GlobalRNGState()}, parts, fork.source)
        session = PartialSession(agent.actor_optimizer)
        frozen = with_batches(agent, agent.buffer.sample)
        for _ in range(updates):
            recipe_of(cfg).update_actor(session, frozen, frozen.critic_batch())
        result = _evaluated(agent, cfg, parts)
        directory.write_config()
        with directory.writing():
            log = RunLog(fork.path, cfg)
            log.clear()
            log.write_evaluation(cfg.total_frames, result)
            policy = policy_data(agent.policy, agent.env, cfg, cfg.total_frames)
            save_file(policy, fork.path / "policy.pt")
            (fork.path / "finished").touch()


def _evaluated(agent: Agent, cfg: TrainingConfig, parts: dict[str, Any]) -> Evaluation:
    env = make_environment(cfg.env, cfg.seed, cfg.replay.has_goals)
    load_environment_state(env, parts["evaluation"])
    seed, longest = EVALUATION_SEED + cfg.seed, cfg.max_eval_steps
    return evaluate(agent.policy, env, cfg.num_eval_episodes, seed, max_steps=longest)
