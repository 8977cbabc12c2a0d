"""The training loop of a population."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer._torchrl import unchecked_tensordict
from torchrl_vmfer.compiled import CompiledUpdates, NotServedError
from torchrl_vmfer.compiled.stacked import Columns
from vmfer_recipes import run
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.population.members import Member
from vmfer_recipes.population.simulators import make_simulators
from vmfer_recipes.run.files import LockedError
from vmfer_recipes.run.interruption import Interruption
from vmfer_recipes.run.progress import Progress

_RATES = ("critic_lr", "actor_lr", "alpha_lr", "gamma", "tau", "exploration_noise")


def train_together(configs: Sequence[Any], is_batched: bool = False) -> list[Exception | None]:
    """Trains runs together. Returns the error of each one, or ``None``.

    After SIGINT or SIGTERM, all members save a checkpoint, and the program ends.

    Args:
        configs: runs that :func:`~vmfer_recipes.population.served.grouped` has put together.
        is_batched: whether MuJoCo tasks take their steps in one call.
    """
    errors: list[Exception | None] = [None] * len(configs)
    with Interruption() as interruption:
        members: dict[int, Member] = {}
        updates: list[CompiledUpdates] = []
        for place, cfg in enumerate(configs):
            try:
                member = Member(cfg, maker(cfg.algorithm), interruption)
                if member.session.finished:
                    continue
                updates.append(member.start())
                members[place] = member
            except LockedError as error:  # several sweeps can share their work
                print(f"{error} The sweep continues without it.", file=sys.stderr)
            except Exception as error:
                errors[place] = _reported(cfg, error)
        if members:
            Population(list(members.values()), updates, interruption, is_batched).train()
        for place, member in members.items():
            errors[place] = member.error
    return errors


def maker(algorithm: str) -> Callable[..., Agent]:
    """The function of a recipe that makes its agent."""
    if algorithm == "sac":
        from vmfer_recipes.sac import make_agent as make_sac

        return make_sac
    from vmfer_recipes.td3 import make_agent

    return make_agent


def _reported(cfg: Any, error: Exception) -> Exception:
    """Prints the error of a member immediately, because the others may run for hours."""
    if not isinstance(error, (UserError, NotServedError)):
        traceback.print_exception(error)
    print("error:", *f"{cfg.run_dir}: {error}".split(), file=sys.stderr)
    return error


class Population:
    """Members that take their steps together.

    Args:
        members: the members.
        updates: the updates of their networks.
        interruption: notes signals.
        is_batched: whether MuJoCo tasks take their steps in one call.
    """

    def __init__(
        self,
        members: list[Member],
        updates: list[CompiledUpdates],
        interruption: Interruption,
        is_batched: bool = False,
    ) -> None:
        self._members, self._interruption = members, interruption
        self._updates = CompiledUpdates.stack(updates)
        settings = self._updates.settings
        cfg = members[0].cfg
        self._cfg, self._delay = cfg, getattr(cfg, "policy_delay", 1)
        self._is_gaussian = settings.is_gaussian
        self._has_actor_noise = self._is_gaussian or bool(settings.actor_noise)
        count, batch = len(members), cfg.batch_size
        size, width = settings.observation, settings.action

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros((count, *shape), np.float32)

        self._simulators = make_simulators([m.collector.env for m in members], is_batched)
        self._observations, self._random_actions = zeros(size), zeros(width)
        self._action_noise, self._noise = zeros(width), zeros(batch, width)
        self._batch = Columns(
            *(zeros(batch, size), zeros(batch, width), zeros(batch, 1)),
            *(np.zeros((count, batch, 1), bool), zeros(batch, size)),
        )
        self._actor_observations = zeros(batch, size)
        # The parts of each member, as views.
        self._action_noise_of = torch.from_numpy(self._action_noise).unbind()
        self._noise_of = torch.from_numpy(self._noise).unbind()
        self._batch_of = list(zip(*(c for c in self._batch if c is not None), strict=True))
        self._index: list[Tensor] = [torch.zeros(0, dtype=torch.int64)] * count
        self._weights = np.ones((count, batch), np.float32)
        self._is_weighted = hasattr(cfg.replay, "beta")
        self._active = np.zeros(count, bool)
        self._rates = {
            key: np.array([float(getattr(member.cfg, key, 0.0)) for member in members])
            for key in _RATES
        }

    def train(self) -> None:
        """Trains all members to their ends."""
        members, cfg = self._members, self._cfg
        done = sum((member.step or cfg.total_frames + 1) - 1 for member in members)
        count = len(members)
        total = count * cfg.total_frames
        print(
            f"A population of {count} runs of {cfg.algorithm}, env={cfg.env.name}, "
            f"{cfg.total_frames:,} steps each, the first in {cfg.run_dir}.",
            file=sys.stderr,
        )
        with Progress(done, total) as bar:
            while True:
                going = [i for i, member in enumerate(members) if member.step is not None]
                if not going:
                    return
                step = min(members[i].step or 0 for i in going)
                # Members that resumed from an earlier step catch up.
                self.take(step, [i for i in going if members[i].step == step])
                is_random = step < cfg.init_random_frames
                bar.postfix = "random actions" if is_random else f"{len(going)} members"
                with suppress(OSError):  # a broken pipe does not end the runs
                    bar.update(sum((m.step or cfg.total_frames + 1) - 1 for m in members) - bar.n)

    def take(self, step: int, chosen: list[int]) -> None:
        """Takes one step of some members."""
        if self._cfg.lr_schedule != "constant":  # their sessions set it for this step
            for i in chosen:
                for name in ("critic", "actor", "alpha"):
                    optimizer = getattr(self._members[i].agent, f"{name}_optimizer")
                    if optimizer is not None:
                        self._rates[f"{name}_lr"][i] = optimizer.param_groups[0]["lr"]
        chosen = self._each(self._collector(step, chosen), chosen)
        if step > self._cfg.init_random_frames:
            updates = run.updates(step, self._cfg.utd_ratio)
            for update in updates:
                chosen = self._update_critics(chosen)
                if update == updates[-1] and min(step, update) % self._delay == 0:
                    chosen = self._update_actors(chosen)
                if update % self._delay == 0:
                    self._updates.update_targets(self._rates["tau"], self._choose(chosen))
        is_stopping = self._interruption.signal is not None
        self._each(lambda i, member: member.advance(is_stopping), chosen)

    def _each(self, act: Callable[[int, Member], None], chosen: list[int]) -> list[int]:
        """Calls a function for some members. Returns those that did not fail."""
        left = []
        for i in chosen:
            member = self._members[i]
            try:
                act(i, member)
                left.append(i)
            except Exception as error:
                member.fail(_reported(member.cfg, error))
        return left

    def _choose(self, chosen: list[int]) -> np.ndarray:
        self._active[:] = False
        self._active[chosen] = True
        return self._active

    def _collector(self, step: int, chosen: list[int]) -> Callable[[int, Member], None]:
        """The function that takes the environment step of one member."""
        if step <= self._cfg.init_random_frames:
            actions = self._random_actions
            for i in chosen:
                actions[i] = self._members[i].random_action()
        else:
            for i in chosen:
                member = self._members[i]
                self._observations[i] = member.collector.observation
                member.draw_normal(self._action_noise_of[i])
            actions = self._updates.act(
                self._observations,
                self._action_noise,
                self._rates["exploration_noise"],
                self._choose(chosen),
            )
        results = self._simulators.step(chosen, actions)
        return lambda i, member: member.collector.collect(actions[i], partial(results, i))

    def _entries(self, i: int, **entries: Tensor) -> TensorDictBase:
        """The last batch of a member."""
        index = self._index[i]
        return unchecked_tensordict({"index": index, **entries}, index.shape)

    def _update_critics(self, chosen: list[int]) -> list[int]:
        def draw(i: int, member: Member) -> None:
            buffer = member.agent.buffer
            index, info = buffer.critic_sampler.sample(buffer.storage, self._cfg.batch_size)
            self._index[i] = index = torch.as_tensor(index)
            if self._is_weighted:
                self._weights[i] = info["priority_weight"]
            member.read(index, *self._batch_of[i])
            member.draw_normal(self._noise_of[i])

        chosen = self._each(draw, chosen)
        found = self._updates.update_critics(
            self._batch,
            self._noise,
            lr=self._rates["critic_lr"],
            clip=self._cfg.max_grad_norm or 0.0,
            gamma=self._rates["gamma"],
            weights=self._weights if self._is_weighted else None,
            active=self._choose(chosen),
        )
        losses, errors = (torch.from_numpy(values).float().unbind() for values in found)

        def note(i: int, member: Member) -> None:
            member.session.metrics.add(critic_loss=losses[i])
            if member.agent.uses_td_errors or member.agent.signal == "td_error":
                member.agent.store_td_errors(self._entries(i), errors[i])

        return self._each(note, chosen)

    def _update_actors(self, chosen: list[int]) -> list[int]:
        observations = self._actor_observations

        def draw(i: int, member: Member) -> None:
            buffer = member.agent.buffer
            if member.agent.sample_actor is None:
                observations[i] = self._batch.observation[i]
            else:
                index, _ = buffer.actor_sampler.sample(buffer.storage, self._cfg.batch_size)
                self._index[i] = torch.as_tensor(index)
                member.read(self._index[i], observations[i])
            if self._has_actor_noise:
                member.draw_normal(self._noise_of[i])

        chosen = self._each(draw, chosen)
        loss, measured = self._updates.update_actor(
            Columns(observations),
            self._noise if self._has_actor_noise else None,
            lr=self._rates["actor_lr"],
            clip=self._cfg.max_grad_norm or 0.0,
            alpha_lr=self._rates["alpha_lr"] if self._is_gaussian else None,
            active=self._choose(chosen),
        )
        losses = torch.from_numpy(loss[:, 0]).float().unbind()
        found = {name: torch.from_numpy(values).unbind() for name, values in measured.items()}

        def note(i: int, member: Member) -> None:
            agent, metrics = member.agent, member.session.metrics
            metrics.add(actor_loss=losses[i])
            if self._is_gaussian:
                metrics.add(alpha=agent.loss.log_alpha.detach().exp())
            needs_row = "factor_mean" not in metrics
            if not needs_row and agent.signal in (None, "td_error"):
                return
            info = {name: values[i] for name, values in found.items()}
            batch = self._entries(i, observation=torch.from_numpy(observations[i].copy()))
            if needs_row:
                with member.turn():
                    agent.log_agreement(metrics, batch, info)
            if agent.score is None:
                agent.store_signal(batch, info)
            else:
                with member.turn():
                    agent.store_signal(batch, info)

        return self._each(note, chosen)
