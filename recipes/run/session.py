"""A training run from start to end: evaluation, logging, checkpoints and resuming."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState

from torchrl_vmfer.plain_state import save_file
from vmfer_recipes.agent.networks import policy_data
from vmfer_recipes.config.errors import UserError, diverged
from vmfer_recipes.config.training import TrainingConfig, as_fraction
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import (
    environment_state,
    load_environment_state,
    seed_generators,
)
from vmfer_recipes.run.checkpoints import Checkpoints, Part, Stateful, load_parts, plain_data
from vmfer_recipes.run.curve import draw_learning_curve
from vmfer_recipes.run.directory import RunDirectory
from vmfer_recipes.run.evaluation import Evaluation, evaluate, print_results, solved_at
from vmfer_recipes.run.interruption import Interruption, SignalError
from vmfer_recipes.run.log import RunLog
from vmfer_recipes.run.progress import Clock, Progress, start_message

EVALUATION_SEED = 1_000_000  # far from the seeds of training environments
_MOST = 1000  # values that are kept, so that memory does not grow with the interval between rows


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        # Values are kept and summed later, because operations on single numbers are slow.
        self._values: dict[str, list[torch.Tensor]] = {}
        self._sums: dict[str, tuple[float, int]] = {}  # sums and numbers of earlier values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds one value for each metric."""
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            if len(values) >= _MOST:
                self._sums[name] = self._sum(name)
                values.clear()
            values.append(value.detach())

    def _sum(self, name: str) -> tuple[float, int]:
        values = torch.stack(self._values[name]).double()
        total, count = self._sums.get(name, (0.0, 0))
        return total + values.sum().item(), count + values.numel()

    def means(self) -> dict[str, float]:
        """The means, by name."""
        sums = {name: self._sum(name) for name in self._values}
        return {name: total / count for name, (total, count) in sums.items()}

    def pop(self) -> dict[str, float]:
        """The means, by name. Then removes all values."""
        means = self.means()
        self._values.clear()
        self._sums.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """The values, by name, and the sums of earlier ones."""
        values = {name: torch.stack(values) for name, values in self._values.items()}
        return {"values": values, "sums": dict(self._sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        self._sums = dict(state["sums"])
        self._values = {name: list(values) for name, values in state["values"].items()}


def updates(step: int, ratio: int | float | str) -> range:
    """The numbers of the critic updates after an environment step, for a ``utd_ratio``."""
    numerator, denominator = as_fraction(ratio)
    return range((step - 1) * numerator // denominator + 1, step * numerator // denominator + 1)


class TrainingSession(Protocol):
    """The interface that the ``train`` function of a recipe requires from a session.

    :class:`Session` implements it and writes a run directory. Benchmarks pass another session that
    sets the number of steps and writes nothing.
    """

    metrics: Averages

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """The numbers of the environment steps to take."""

    def descend(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        """Takes one gradient step."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Session(TrainingSession):
    """Counts the steps of a run, and evaluates, logs and saves between them.

    With ``shared``, the signals of a population, it is the population that shows the progress.
    """

    draws = True  # whether the run ends with its learning curve, for which the random policy plays

    def __init__(
        self,
        cfg: TrainingConfig,
        *,
        directory: RunDirectory | None = None,
        checkpoints: Checkpoints | None = None,
        shared: Interruption | None = None,
    ) -> None:
        self.cfg = cfg
        self._shared = shared
        self.metrics = Averages()
        self._directory = directory or RunDirectory(cfg)
        self._environment = make_environment(cfg.env, cfg.seed, cfg.replay.has_goals)
        if cfg.stop_when_solved and solved_at(cfg, reports_success=False) is None:
            raise UserError(
                f"stop_when_solved=true needs a level, which {cfg.env.name} does not have: set "
                "solved_at= to a return or a success rate."
            )
        self.finished = self._directory.is_finished()
        if self.finished:
            return
        torch.set_num_threads(cfg.threads)
        seed_generators(cfg.seed)
        self._checkpoints = checkpoints or Checkpoints(self._directory.path / "checkpoint")
        self._latest: Evaluation | None = None
        self._evaluated: int | None = None  # the step of the last evaluation
        self._is_solved = False  # whether the run stops because the task is solved
        self._deadline = time.monotonic() + 60 * (cfg.max_minutes or math.inf)

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """Counts the environment steps from 1, or from the step where the run was stopped.

        Between steps, it evaluates the policy, writes metrics and saves checkpoints. After SIGINT
        or SIGTERM, it completes the current step, saves a checkpoint and ends the program. An
        evaluation is not completed, but repeated when the run resumes.

        A run ends with an evaluation and a row of metrics. If its last step is not a multiple of
        the intervals, a longer run would not have these: they are written after the last
        checkpoint and are not part of it.

        The ``components`` are everything that a checkpoint must hold so that a resumed run is
        identical to an uninterrupted one. Those with a ``close`` method are closed at the end.
        """
        self._policy, self._components = policy, components
        self._policy_data = partial(policy_data, policy, self._environment, self.cfg)
        last = self.cfg.total_frames
        signals = nullcontext(self._shared) if self._shared else Interruption()
        with self._directory.lock(), signals as self._interruption, ExitStack() as ends:
            for part in components.values():
                if hasattr(part, "close"):
                    ends.callback(part.close)
            if self._directory.is_finished():  # by the previous owner of the lock
                return
            self._log = RunLog(self._directory.path, self.cfg)
            ends.callback(self._log.close)
            step = start = self._begin()
            if not self._shared:
                print(start_message(self.cfg, start), file=sys.stderr)
            at_random, is_hidden = self.cfg.init_random_frames, bool(self._shared)
            progress = Progress(start, last, at_random, is_hidden=is_hidden)
            self._progress = ends.enter_context(progress)
            self._clock = Clock(start)
            try:
                self._prepare(start)
                while step < last and not self._is_solved:
                    step += 1
                    self._schedule(step)
                    yield step
                    self._after(step)
                if step % self.cfg.eval_interval:
                    self._evaluate(step)
            except SignalError:
                return self._stop(step, is_saved=step == 0 or self._save(step))
            if step % self.cfg.log_interval:
                self._write_metrics(step)
            try:
                self._finish(step)
            except SignalError:
                self._stop(step, is_saved=False)

    # --- The start of a run.

    def _begin(self) -> int:
        """Prepares the directory. Returns the step from which the run resumes."""
        with self._directory.writing():
            start = self._restore()
        if start == 0:
            # Checked now, not after hours of training that could not be resumed.
            plain_data(self._state(0), "the state")
            with self._directory.writing():
                self._log.clear()
        self._directory.write_config()
        return start

    def _restore(self) -> int:
        state = self._checkpoints.load()
        if state is None:
            return 0
        self._directory.check_checkpoint(state)
        saved, self._evaluated = state["parts"], state["evaluated"]
        self._is_solved = self.cfg.stop_when_solved and "solved" in state
        place = f"The checkpoint of step {state['step']} in {self._directory.path}"
        fault = f"{place} does not match this configuration or version"
        load_parts(self._parts(), saved, fault, "choose another run_dir")
        self._log.check(saved)  # before any file is changed
        self._directory.reopen()
        self._log.load_state_dict(saved)
        return state["step"]

    def _prepare(self, start: int) -> None:
        """Makes the evaluation and the checkpoints that an earlier process did not complete."""
        if start % self.cfg.eval_interval == 0 and self._evaluated != start:
            self._evaluate(start)
            if start:
                self._save(start)
        attribute = environment_state(self._environment).get("unsaved")
        if attribute is not None:
            print(
                f"A resumed run will restart the interrupted episode, because {attribute} cannot "
                "be saved: give its class the methods state_dict and load_state_dict.",
                file=sys.stderr,
            )
        for step in sorted({*self.cfg.keep_checkpoints_at} - self._checkpoints.kept):
            if step == start:
                self._save(start, is_kept=True)
            elif step < start:
                print(
                    f"keep_checkpoints_at: the checkpoint of step {step} cannot be kept, because "
                    f"the run resumes from step {start}.",
                    file=sys.stderr,
                )

    # --- Between the steps.

    def _schedule(self, step: int) -> None:
        """Sets the learning rates of a step; checkpoints hold the initial ones."""
        if self.cfg.lr_schedule == "linear":
            left = 1 - (step - 1) / self.cfg.total_frames
            for part in self._components.values():
                for group in part.param_groups if isinstance(part, torch.optim.Optimizer) else ():
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * left

    def _after(self, step: int) -> None:
        """Logs, evaluates and saves after a step, if it is time to."""
        cfg = self.cfg
        with suppress(OSError):  # a broken pipe does not end the run
            self._progress.update()
        if step == cfg.init_random_frames:
            self._progress.note()
        if step % cfg.log_interval == 0:
            self._write_metrics(step)
        if step % cfg.eval_interval == 0:
            self._evaluate(step)
        if step in cfg.keep_checkpoints_at:
            self._save(step, is_kept=True)
        self._check_signal()
        if step % cfg.log_interval == 0 and time.monotonic() > self._deadline:
            raise SignalError
        is_last = step == cfg.total_frames or self._is_solved
        if cfg.keep_checkpoint if is_last else step % cfg.checkpoint_interval == 0:
            self._save(step)

    def _check_signal(self) -> None:
        if self._interruption.signal is not None:
            raise SignalError

    def _parts(self) -> dict[str, Stateful]:
        """Everything in a checkpoint that later steps depend on."""
        env = self._environment
        return {
            **self._components,
            "metrics": self.metrics,
            # A wrapper may count or draw numbers across episodes.
            "evaluation": Part(
                partial(environment_state, env), partial(load_environment_state, env)
            ),
            # Last: restoring other components may draw random numbers.
            "random": GlobalRNGState(),
        }

    def _state(self, step: int) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {
            "step": step,
            "run": self._directory.identity,
            "evaluated": self._evaluated,
            **({"solved": True} if self._is_solved else {}),
            "policy": self._policy_data(step),
            "parts": {**parts, **self._log.state_dict()},
        }

    def _save(self, step: int, is_kept: bool = False) -> bool:
        _check_finite(self.metrics.means(), step)
        return self._checkpoints.save(step, self._state(step), is_kept=is_kept)

    def _evaluate(self, step: int) -> None:
        try:
            with self._clock.paused():
                result = self._play(self._policy)
        except UserError as error:
            raise UserError(f"In the evaluation at step {step}: {error}") from error
        with self._directory.writing():
            self._log.write_evaluation(step, result, partial(self._policy_data, step))
        self._progress.show(result)
        self._latest, self._evaluated = result, step
        level = solved_at(self.cfg, result.success_rate is not None)
        if step and self.cfg.stop_when_solved and level is not None:
            self._is_solved = level.includes(result)

    def _play(self, policy: TensorDictModuleBase | None) -> Evaluation:
        return evaluate(
            policy,
            self._environment,
            self.cfg.num_eval_episodes,
            EVALUATION_SEED + self.cfg.seed,
            self._progress.note,
            self._check_signal,
            self.cfg.max_eval_steps,
        )

    def _write_metrics(self, step: int) -> None:
        means = self.metrics.pop()
        _check_finite(means, step)
        metrics = {**means, "steps_per_second": self._clock.speed(step)}
        for part in self._components.values():
            if hasattr(part, "episodes"):  # a collector: the returns of training episodes
                metrics |= part.episodes.pop()
        if means:
            with self._directory.writing():
                self._log.write_training(step, metrics)

    # --- The end of a run.

    def _stop(self, step: int, is_saved: bool) -> None:
        place = "there" if is_saved else "the last checkpoint"
        print(
            f"Stopped {self._directory.path} at step {step}. Run the same command to resume from "
            f"{place}.",
            file=sys.stderr,
        )

    def _finish(self, step: int) -> None:
        path, cfg = self._directory.path, self.cfg
        # A run that was killed just before its end was evaluated by another process.
        trained = self._latest or self._play(self._policy)
        at_random = self._play(None) if self.draws else None
        self._progress.close()
        with self._directory.writing():
            save_file(self._policy_data(step), path / "policy.pt")
            picture = None
            if at_random is not None:
                self._log.write_random(at_random)
                picture = draw_learning_curve(path)
            (path / "finished").touch()
            # The older ones were for the case that the last could not be saved.
            checkpoint = self._checkpoints.reduce(to=1 if cfg.keep_checkpoint else 0)
        self.report(trained, at_random, picture, checkpoint)

    def report(self, trained: Evaluation, *others: Any) -> None:
        """Prints the results of a finished run, and where its files are."""
        print_results(self.cfg, self._directory.path, trained, *others)


def _check_finite(means: dict[str, float], step: int) -> None:
    for name, mean in means.items():
        if not math.isfinite(mean):
            raise diverged(f"{name} is {mean} at step {step}")
