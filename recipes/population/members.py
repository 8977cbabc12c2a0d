"""A member of a population: one run with its session, its agent and its random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer._torchrl import append_rows, stored_rows
from torchrl_vmfer.compiled import CompiledUpdates, functions
from torchrl_vmfer.compiled.rows import extend
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.agent.networks import exploring
from vmfer_recipes.collection.worker import EpisodeReturns
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.environments.make import kept
from vmfer_recipes.environments.state import environment_state, load_environment_state
from vmfer_recipes.population.simulators import Result
from vmfer_recipes.run.evaluation import Evaluation
from vmfer_recipes.run.interruption import Interruption
from vmfer_recipes.run.session import Session


class _MemberSession(Session):
    """The session of a member, which prints one line at its end."""

    draws = False  # a picture takes as long as a thousand steps
    is_quiet = False  # whether the step ends outside of the turn of the member

    def _check_signal(self) -> None:
        if not self.is_quiet:  # a checkpoint would hold the random numbers of another member
            super()._check_signal()

    def _play(self, policy: Any) -> Evaluation:
        noise = getattr(self.cfg, "exploration_noise", None)  # off in evaluations
        return super()._play(exploring(policy, True, noise))

    def report(self, trained: Evaluation, *others: Any) -> None:
        """One line for each member."""
        print(f"{self.cfg.run_dir}: return {trained.return_mean:.1f}")


class MemberCollector:
    """Steps the environment of a member with actions that its population computes.

    Args:
        agent: the agent, whose environment has been reset by its own collector.

    Attributes:
        env: the environment.
        observation: the current observation.
        episodes: the returns of the training episodes.
    """

    def __init__(self, agent: Agent) -> None:
        self.env, self._buffer = agent.env, agent.buffer
        self._storage, self._sampler = agent.buffer.storage, agent.buffer.critic_sampler
        self._writer: Any = agent.buffer.writer
        self._rewards = agent.observations.rewards
        self._steps = 0
        self.observation: np.ndarray = _carried(agent.collector)
        self.episodes = EpisodeReturns()
        self._transition = kept(agent.env.fake_tensordict()).unsqueeze(0).contiguous()
        following = self._transition["next"]
        self._now = [self._transition[key].numpy()[0] for key in ("observation", "action")]
        keys = ("observation", "reward", "done", "terminated")
        self._next = [following[key].numpy()[0] for key in keys]

    def collect(self, action: np.ndarray, step: Callable[[], Result]) -> None:
        """Takes one environment step and stores the transition.

        Args:
            action: the action.
            step: takes the step with this action.
        """
        now, chosen = self._now
        now[:], chosen[:] = self.observation, action
        try:
            after, reward, terminated, truncated = step()
            is_over = terminated or truncated
            observation, reward_, done, terminated_ = self._next
            observation[:], reward_[:], done[:] = after, reward, is_over
            terminated_[:] = terminated
            if is_over:
                after = self.env.simulator.reset()[0]
        except UserError as error:
            raise UserError(f"At step {self._steps + 1}: {error}") from error
        self.observation = after
        self._steps += 1
        if self._rewards is not None:
            self._rewards.learn(self._transition, 0, 1)
        if self._storage.initialized:  # what `extend` does, without its checks
            self._sampler.extend(append_rows(self._writer, self._transition))
        else:
            extend(self._buffer, self._transition)
        self.episodes.add(float(reward_[0]), bool(is_over))

    def state_dict(self) -> dict[str, Any]:
        """The same state as that of a run on its own, so that a fork can continue it."""
        return {
            "frames": self._steps,
            "steps": self._steps,
            "episodes": self.episodes.state_dict(),
            "environments": [environment_state(self.env)],
            "seen": [{"observation": torch.from_numpy(self.observation.copy())}],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within the episode."""
        load_environment_state(self.env, state["environments"][0])
        self.observation = state["seen"][0]["observation"].numpy().copy()
        self._steps = state["frames"]
        self.episodes.load_state_dict(state["episodes"])


def _carried(collector: Any) -> np.ndarray:
    return collector.state_dict()["seen"][0]["observation"].numpy().copy()


class Member:
    """One run of a population.

    Between its turns, its random numbers are kept apart: other members do not affect them.

    Args:
        cfg: the configuration of the run.
        make_agent: makes the agent, as in the recipe of its algorithm.
        interruption: notes the signals of all members.

    Attributes:
        step: the environment step to take; ``None`` after the last one.
        error: why the run failed; ``None`` if it did not.
    """

    def __init__(
        self, cfg: Any, make_agent: Callable[..., Agent], interruption: Interruption
    ) -> None:
        self.cfg = cfg
        self.step: int | None = None
        self.error: Exception | None = None
        self.generator = torch.Generator()
        self.session = _MemberSession(cfg, shared=interruption)  # also seeds the global generators
        if self.session.finished:
            return
        self.agent = make_agent(cfg)
        self.collector = MemberCollector(self.agent)
        components = {**self.agent.components(), "collector": self.collector}
        self._steps = self.session.steps(**components)
        self._columns: tuple[np.ndarray, ...] = ()
        self._read_rows = functions().read_rows
        self._keep()

    def start(self) -> CompiledUpdates:
        """Restores the run. Returns the updates of its networks, which can then be stacked."""
        agent = self.agent
        self._proceed()
        return CompiledUpdates(
            agent.loss,
            critic_optimizer=agent.critic_optimizer,
            actor_optimizer=agent.actor_optimizer,
            alpha_optimizer=agent.alpha_optimizer,
            targets=agent.targets,
        )

    def advance(self, is_stopping: bool) -> None:
        """Ends a step: evaluates, logs and saves if it is time to."""
        assert self.step is not None
        self.session.is_quiet = self.step < self._next_event and not is_stopping
        if self.session.is_quiet:
            self.step = next(self._steps)
        else:
            self._proceed()

    def _proceed(self) -> None:
        """Starts the next step, and finds the first one after which there is more to do."""
        with self.turn():
            self.step = step = next(self._steps, None)
        if step is not None:
            cfg = self.cfg
            intervals = (cfg.eval_interval, cfg.checkpoint_interval, cfg.log_interval)
            multiples = (-(-step // interval) * interval for interval in intervals)
            kept = (other for other in cfg.keep_checkpoints_at if other >= step)
            self._next_event = min(cfg.total_frames, *multiples, *kept)

    def fail(self, error: Exception) -> None:
        """Ends the run because of an error."""
        self.error, self.step = error, None
        self._steps.close()  # type: ignore[attr-defined]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context in which the global generators continue the random numbers of this run."""
        torch.set_rng_state(self.generator.get_state())
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)
        try:
            yield
        finally:
            self._keep()

    def _keep(self) -> None:
        self.generator.set_state(torch.get_rng_state())
        self._numpy, self._python = np.random.get_state(), random.getstate()  # noqa: NPY002

    def random_action(self) -> np.ndarray:
        """A uniform action, as the recipes draw it."""
        torch.set_rng_state(self.generator.get_state())
        action = self.agent.env.action_spec.rand()
        self.generator.set_state(torch.get_rng_state())
        return action.numpy()

    def draw_normal(self, out: Tensor) -> None:
        """Fills a tensor with standard normal numbers."""
        torch.randn(out.shape, generator=self.generator, out=out)

    def read(self, index: Tensor, *places: np.ndarray) -> None:
        """Copies rows of the replay buffer.

        Args:
            index: the slots of the rows.
            *places: where to copy observations and, optionally, actions, rewards, terminations and
                next observations.
        """
        if not self._columns:
            rows: Any = stored_rows(self.agent.buffer.storage)
            following = rows["next"]
            keys = ("reward", "terminated", "observation")
            found = [rows["observation"], rows["action"], *(following[key] for key in keys)]
            self._columns = tuple(column.numpy() for column in found)
        columns = self._columns[: len(places)]
        self._read_rows(columns, index.numpy(), len(columns[0]), places)
        if len(places) > 2 and (rewards := self.agent.observations.rewards) is not None:
            places[2][:] *= rewards.factor()
