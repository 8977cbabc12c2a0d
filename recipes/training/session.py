"""A training run from start to end: evaluation, logging, checkpoints and resuming."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from tqdm import tqdm

from torchrl_vmfer.fast import Backend, make_backend
from vmfer_recipes.training.checkpoints import Checkpoints, check_readable
from vmfer_recipes.training.curve import draw_learning_curve
from vmfer_recipes.training.environments import Environment, make_environment
from vmfer_recipes.training.errors import UserError, diverged, first_line
from vmfer_recipes.training.evaluation import Evaluation, evaluate
from vmfer_recipes.training.interruption import Interruption
from vmfer_recipes.training.logs import RunLog, check_logger
from vmfer_recipes.training.networks import policy_data, write_policy
from vmfer_recipes.training.options import Config
from vmfer_recipes.training.run_directory import RunDirectory

__all__ = ["Averages", "Session", "Stateful", "TrainingSession"]

# Far from the seeds of training environments.
_EVALUATION_SEED = 1_000_000


class Stateful(Protocol):
    """Anything that can be part of a checkpoint."""

    def state_dict(self) -> Any:
        """Plain data: tensors, numbers, strings, and containers of these."""

    def load_state_dict(self, state: Any) -> Any:
        """Resumes from a saved state."""


class Averages:
    """Means of metrics since they were last read."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def add(self, **metrics: torch.Tensor) -> None:
        """Adds one value for each metric."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value.detach())

    def means(self) -> dict[str, float]:
        """The means, by name."""
        return {name: values.double().mean().item() for name, values in self.state_dict().items()}

    def pop(self) -> dict[str, float]:
        """The means, by name. Then removes all values."""
        means = self.means()
        self._values.clear()
        return means

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The values, by name."""
        return {name: torch.stack(values) for name, values in self._values.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores saved values."""
        self._values = {name: list(values) for name, values in state.items()}


class TrainingSession(Protocol):
    """The interface that the ``train`` function of a recipe requires from a session.

    :class:`Session` implements it and writes a run directory. Benchmarks pass another session that
    sets the number of steps and writes nothing.

    Attributes:
        backend: the components of the training loop.
        metrics: receives the metrics of the recipe.
    """

    backend: Backend
    metrics: Averages

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """The numbers of the environment steps to take."""

    def descend(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        """Takes one gradient step."""
        optimizer.zero_grad()
        self.backend.backward(loss)
        optimizer.step()


class Session(TrainingSession):
    """Counts the steps of a run, and evaluates, logs and saves between them.

    Args:
        cfg: the configuration of the run.
        directory: the directory of the run. By default, this and the following are made from
            ``cfg``.
        log: the tables and the logger.
        checkpoints: the checkpoints from which the run resumes.
        kept_checkpoints: those of ``keep_checkpoints_at``.

    Attributes:
        backend: TorchRL's components or the fast ones, as selected by ``fast=``.
        finished: whether the run is already finished.
        metrics: averages of the reported metrics, for ``train.csv``.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        directory: RunDirectory | None = None,
        log: RunLog | None = None,
        checkpoints: Checkpoints | None = None,
        kept_checkpoints: Checkpoints | None = None,
    ) -> None:
        self.cfg = cfg
        self.metrics = Averages()
        self._directory = directory or RunDirectory(cfg)
        path = self._directory.path
        self._environment = make_environment(cfg.env, cfg.seed, cfg.replay.kind == "her")
        check_logger(cfg.logger)
        self._directory.check()
        self.finished = self._directory.is_finished()
        if self.finished:
            return
        torch.set_num_threads(cfg.threads)
        self.backend = make_backend(cfg.fast)
        # All three global generators: an environment or a library may use any of them.
        random.seed(cfg.seed)
        np.random.seed(cfg.seed)  # noqa: NPY002
        torch.manual_seed(cfg.seed)
        self._log = log or RunLog(path, cfg)
        self._checkpoints = checkpoints or Checkpoints(path / "checkpoint")
        self._kept = kept_checkpoints or Checkpoints(path / "checkpoint" / "kept", keep=None)

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """Counts the environment steps from 1, or from the step where the run was stopped.

        Between steps, at the configured intervals, it evaluates the policy, writes metrics and
        saves checkpoints. The run directory is locked during the run. After SIGINT or SIGTERM, it
        completes the current step, saves a checkpoint and ends the program.

        Args:
            policy: the policy to evaluate, and to save at the end.
            **components: everything that a checkpoint must hold so that a resumed run is identical
                to an uninterrupted one. Components with a ``close`` method are closed at the end.
        """
        parts: dict[str, Stateful] = {
            **components,
            "metrics": self.metrics,
            **self._log.tables,
            # Last: restoring other components may draw random numbers.
            "random": GlobalRNGState(),
        }
        self._policy = policy
        cfg, last = self.cfg, self.cfg.total_frames
        with self._directory.lock(), Interruption() as interruption, ExitStack() as ends:
            for part in components.values():
                if hasattr(part, "close"):
                    ends.callback(part.close)
            if self._directory.is_finished():  # by the process that previously held the lock
                return
            ends.callback(self._log.close)
            start = self._begin(parts)
            bar = ends.enter_context(_progress_bar(start, last))
            if start == 0:
                self._evaluate(0, policy, bar)
            clock = _Clock(start)
            for step in range(start + 1, last + 1):
                yield step
                bar.update()
                if step % cfg.log_interval == 0 or step == last:
                    self._write_metrics(step, clock.speed(step), components)
                if step % cfg.eval_interval == 0 or step == last:
                    with clock.paused():
                        result = self._evaluate(step, policy, bar)
                if step in cfg.keep_checkpoints_at:
                    self._save(step, parts, self._kept)
                if step == last:
                    break
                if interruption.signal:
                    return self._stop(step, parts)
                if step % cfg.checkpoint_interval == 0:
                    self._save(step, parts, self._checkpoints)
            bar.close()
            self._finish(policy, result)

    def _begin(self, parts: dict[str, Stateful]) -> int:
        """Prepares the directory. Returns the step from which the run resumes."""
        self._directory.check()  # again: another process may have written one before the lock
        self._log.open()
        with self._directory.writing():
            start = self._restore(parts)
        if start == 0:
            # Checked now, not after hours of training that could not be resumed.
            check_readable(self._state(0, parts))
        self._directory.write_config()
        return start

    def _restore(self, parts: dict[str, Stateful]) -> int:
        state = self._checkpoints.load()
        path = self._directory.path
        if state is None:
            self._log.clear()
            return 0
        try:
            for name, part in parts.items():
                part.load_state_dict(state["parts"][name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"The checkpoint of step {state['step']} in {path} does not match this "
                f"configuration or version ({first_line(error)}): choose another run_dir."
            ) from error
        print(f"Resuming {path} at step {state['step']}.", file=sys.stderr)
        return state["step"]

    def _save(self, step: int, parts: dict[str, Stateful], checkpoints: Checkpoints) -> bool:
        _check_finite(self.metrics.means(), step)
        return checkpoints.save(step, self._state(step, parts))

    def _state(self, step: int, parts: dict[str, Stateful]) -> dict[str, Any]:
        return {
            "step": step,
            # For evaluate.py, which knows no algorithm.
            "policy": policy_data(self._policy, self._environment, self.cfg, step),
            "parts": {name: part.state_dict() for name, part in parts.items()},
        }

    def _stop(self, step: int, parts: dict[str, Stateful]) -> None:
        is_saved = self._save(step, parts, self._checkpoints)
        print(
            f"Stopped {self._directory.path} at step {step}. Run the same command to resume from "
            f"{'there' if is_saved else 'the last checkpoint'}.",
            file=sys.stderr,
        )

    def _evaluate(self, step: int, policy: TensorDictModuleBase, bar: tqdm) -> Evaluation:
        try:
            result = self._play(policy, self._environment)
        except UserError as error:
            raise UserError(f"In the evaluation at step {step}: {error}") from error
        with self._directory.writing():
            self._log.write_evaluation(step, result)
        shown = {"return": f"{result.return_mean:.1f}"}
        if result.success_rate is not None:
            shown["success"] = f"{result.success_rate:.2f}"
        bar.set_postfix(shown)
        return result

    def _play(self, policy: TensorDictModuleBase | None, env: Environment) -> Evaluation:
        seed = _EVALUATION_SEED + self.cfg.seed
        return evaluate(policy, env, self.cfg.num_eval_episodes, seed)

    def _write_metrics(self, step: int, speed: float, components: dict[str, Stateful]) -> None:
        means = self.metrics.pop()
        episodes: dict[str, float] = {}
        for part in components.values():
            if hasattr(part, "episodes"):  # a collector: the returns of training episodes
                episodes |= part.episodes.pop()
        _check_finite(means, step)
        if means:
            with self._directory.writing():
                metrics = {**means, "steps_per_second": speed, **episodes}
                self._log.write_training(step, metrics)

    def _finish(self, policy: TensorDictModuleBase, trained: Evaluation) -> None:
        path = self._directory.path
        with self._directory.writing():
            write_policy(
                policy, self._environment, self.cfg, path / "policy.pt", self.cfg.total_frames
            )
            picture = draw_learning_curve(path)
            (path / "finished").touch()
        at_random = self._play(None, self._environment)
        print(
            f"{_summary(trained)} over {self.cfg.num_eval_episodes} episodes; the random policy "
            f"gets {_summary(at_random).removeprefix('Return ')}."
        )
        for label, file in {
            "learning curve": picture,
            "evaluations": path / "eval.csv",
            "training metrics": path / "train.csv",
            "policy": path / "policy.pt",
        }.items():
            if file is not None:
                print(f"  {label:<17} {file}")


class _Clock:
    """Measures the speed of training, without evaluations.

    Args:
        step: the step at which it starts.
    """

    def __init__(self, step: int) -> None:
        self._step, self._start = step, time.perf_counter()

    def speed(self, step: int) -> float:
        """The steps per second since the last call."""
        now = time.perf_counter()
        speed = (step - self._step) / (now - self._start)
        self._step, self._start = step, now
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose duration is not counted."""
        pause = time.perf_counter()
        yield
        self._start += time.perf_counter() - pause


def _progress_bar(start: int, total: int) -> tqdm:
    # Avoids flooding log files with updates of the bar.
    interval = 0.2 if sys.stderr.isatty() else 30
    return tqdm(total=total, initial=start, unit="step", mininterval=interval)


def _check_finite(means: dict[str, float], step: int) -> None:
    for name, mean in means.items():
        if not math.isfinite(mean):
            raise diverged(f"{name} is {mean} at step {step}")


def _summary(result: Evaluation) -> str:
    text = f"Return {result.return_mean:.1f} ± {result.return_std:.1f}"
    if result.success_rate is not None:
        text += f" (success rate {result.success_rate:.2f})"
    return text
