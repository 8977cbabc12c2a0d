"""A training run from start to end: its directory, its logs, and how it goes on after a stop."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from tqdm import tqdm

from torchrl_vmfer.fast import make_backend
from vmfer_recipes.training.checkpoints import Checkpoints
from vmfer_recipes.training.curve import draw_learning_curve
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.errors import UserError, diverged, first_line
from vmfer_recipes.training.evaluation import Evaluation, evaluate
from vmfer_recipes.training.files import replacing
from vmfer_recipes.training.interruption import Interruption
from vmfer_recipes.training.lock import lock
from vmfer_recipes.training.logs import Averages, Table, check_logger, make_logger
from vmfer_recipes.training.options import Config

__all__ = ["Session"]

# Keys that say where and how a run is watched, not what it computes.
_INCIDENTAL = ("resume", "run_dir", "logger", "keep_checkpoints_at")
# Far from the training environment's seeds.
_EVALUATION_SEED = 1_000_000


class Stateful(Protocol):
    """Anything that can be part of a checkpoint."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class Session:
    """Leads a run through its steps and does on the way what is not learning.

    Args:
        cfg: the configuration of the run.

    Attributes:
        run_dir: where all output goes.
        backend: TorchRL's own parts or the fast ones, as ``fast=`` asks for.
        finished: whether the run was brought to its end before.
        metrics: averages of what the recipe reports, for ``train.csv``.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self._config = cfg.as_dict()
        self.run_dir = Path(cfg.run_dir)
        self.metrics = Averages()
        self._environment = make_environment(cfg.env.name, cfg.seed, cfg.replay.kind == "her")
        check_logger(cfg.logger)
        self._check_config()
        self.finished = self._is_finished()
        if self.finished:
            return
        torch.set_num_threads(cfg.threads)
        self.backend = make_backend(cfg.fast)
        # The global generators of all three: an environment or a library may draw from any.
        random.seed(cfg.seed)
        np.random.seed(cfg.seed)  # noqa: NPY002
        torch.manual_seed(cfg.seed)
        self._checkpoints = Checkpoints(self.run_dir / "checkpoint")
        self._kept_checkpoints = Checkpoints(self.run_dir / "checkpoint" / "kept", keep=None)
        self._evaluations = Table(self.run_dir / "eval.csv")
        self._training = Table(self.run_dir / "train.csv")

    def _check_config(self) -> None:
        """Refuses a directory that holds a run of another configuration."""
        file = self.run_dir / "config.yaml"
        if not file.exists():
            return
        if not self.cfg.resume:
            raise UserError(
                f"{self.run_dir} holds a run and resume=false: delete it or choose another run_dir."
            )
        try:
            before = _flat(OmegaConf.to_container(OmegaConf.load(file)))
        except Exception as error:
            raise UserError(
                f"{file} cannot be read ({first_line(error)}): put back a copy of it, or choose "
                "another run_dir."
            ) from error
        now = _flat(self._config)
        differing = [
            f"{key}={before.get(key)} there, {now.get(key)} here"
            for key in sorted(before.keys() | now.keys())
            if key.split(".")[0] not in _INCIDENTAL and before.get(key) != now.get(key)
        ]
        if differing:
            raise UserError(
                f"{self.run_dir} holds a run of another configuration ({'; '.join(differing)}): "
                "choose another run_dir or use the same values."
            )

    def _is_finished(self) -> bool:
        if not (self.run_dir / "finished").exists():
            return False
        print(f"The run in {self.run_dir} is finished. Nothing to do.")
        return True

    def _write_config(self) -> None:
        with replacing(self.run_dir / "config.yaml") as file:
            file.write(OmegaConf.to_yaml(self._config))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as the latter
            raise UserError(
                f"The run directory {self.run_dir} cannot be written ({first_line(error)}): make "
                "room on the disk and start again, which goes on from the last checkpoint, or "
                "choose another run_dir."
            ) from error

    def steps(self, policy: TensorDictModuleBase, **components: Stateful) -> Iterator[int]:
        """Counts the environment steps from 1, or from where the run was stopped.

        Between two steps the policy is evaluated, metrics are written and checkpoints saved when
        they are due. The run directory is locked meanwhile. After SIGINT or SIGTERM the step at
        hand is finished and saved, and the program ends.

        Args:
            policy: the policy to evaluate and to save in the end.
            **components: all that a checkpoint must hold for the run to go on as if it had
                never been stopped. What has a method ``close`` is closed in the end.
        """
        parts: dict[str, Stateful] = {
            **components,
            "metrics": self.metrics,
            "evaluations": self._evaluations,
            "training": self._training,
            # Last: restoring other parts may draw random numbers.
            "random": GlobalRNGState(),
        }
        with self._writing():
            held = lock(self.run_dir)
        with held, Interruption() as interruption, ExitStack() as ends:
            for part in components.values():
                if hasattr(part, "close"):
                    ends.callback(part.close)
            if self._is_finished():  # by whoever held the lock until now
                return
            start = self._begin(parts)
            ends.callback(self._close_logger)
            with tqdm(
                total=self.cfg.total_frames,
                initial=start,
                unit="step",
                # A log file need not hold every stroke of the bar.
                mininterval=0.2 if sys.stderr.isatty() else 30,
            ) as bar:
                if start == 0:
                    self._evaluate(0, policy, bar)
                clock, since = time.perf_counter(), start
                for step in range(start + 1, self.cfg.total_frames + 1):
                    yield step
                    bar.update()
                    is_last = step == self.cfg.total_frames
                    if step % self.cfg.log_interval == 0 or is_last:
                        speed = (step - since) / (time.perf_counter() - clock)
                        self._log(step, speed)
                        clock, since = time.perf_counter(), step
                    if step % self.cfg.eval_interval == 0 or is_last:
                        paused = time.perf_counter()
                        result = self._evaluate(step, policy, bar)
                        clock += time.perf_counter() - paused
                    if step in self.cfg.keep_checkpoints_at:
                        self._save(step, parts, self._kept_checkpoints)
                    if is_last:
                        break
                    if interruption.signal:
                        return self._stop(step, parts)
                    if step % self.cfg.checkpoint_interval == 0:
                        self._save(step, parts, self._checkpoints)
            self._finish(policy, result)

    def _begin(self, parts: dict[str, Stateful]) -> int:
        """Makes the directory ready. Returns the step at which the run goes on."""
        self._check_config()  # again: whoever held the lock until now may have written one
        name = f"{self.cfg.algorithm}-{self.cfg.env.name}"
        self._logger = make_logger(self.cfg.logger, self.run_dir, name)
        with self._writing():
            start = self._restore(parts)
            self._write_config()
        return start

    def _save(self, step: int, parts: dict[str, Stateful], checkpoints: Checkpoints) -> bool:
        _check_finite(self.metrics.means(), step)
        states = {name: part.state_dict() for name, part in parts.items()}
        return checkpoints.save(step, {"step": step, "parts": states})

    def _stop(self, step: int, parts: dict[str, Stateful]) -> None:
        is_saved = self._save(step, parts, self._checkpoints)
        print(
            f"Stopped {self.run_dir} at step {step}. The same command goes on from "
            f"{'there' if is_saved else 'the last checkpoint'}.",
            file=sys.stderr,
        )

    def _restore(self, parts: dict[str, Stateful]) -> int:
        state = self._checkpoints.load()
        if state is None:
            self._evaluations.clear()
            self._training.clear()
            return 0
        try:
            for name, part in parts.items():
                part.load_state_dict(state["parts"][name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"The checkpoint of step {state['step']} in {self.run_dir} does not fit this "
                f"configuration ({first_line(error)}): choose another run_dir."
            ) from error
        print(f"Resuming {self.run_dir} at step {state['step']}.", file=sys.stderr)
        return state["step"]

    def _evaluate(self, step: int, policy: TensorDictModuleBase, bar: tqdm) -> Evaluation:
        try:
            result = evaluate(
                policy,
                self._environment,
                self.cfg.num_eval_episodes,
                seed=_EVALUATION_SEED + self.cfg.seed,
            )
        except UserError as error:
            raise UserError(f"In the evaluation at step {step}: {error}") from error
        with self._writing():
            self._evaluations.write({"step": step, **result._asdict()})
        shown = {"return": f"{result.return_mean:.1f}"}
        if result.success_rate is not None:
            shown["success"] = f"{result.success_rate:.2f}"
        bar.set_postfix(shown)
        self._mirror("eval", {k: v for k, v in result._asdict().items() if v is not None}, step)
        return result

    def _log(self, step: int, speed: float) -> None:
        means = self.metrics.pop()
        _check_finite(means, step)
        if means:
            row = {**means, "steps_per_second": speed}
            with self._writing():
                self._training.write({"step": step, **row})
            self._mirror("train", row, step)

    def _mirror(self, prefix: str, metrics: dict[str, float], step: int) -> None:
        if self._logger is not None:
            self._logger.log_metrics({f"{prefix}/{k}": v for k, v in metrics.items()}, step)

    def _close_logger(self) -> None:
        if self._logger is not None:
            experiment = self._logger.experiment
            (experiment.finish if hasattr(experiment, "finish") else experiment.close)()

    def _finish(self, policy: TensorDictModuleBase, trained: Evaluation) -> None:
        with self._writing():
            with replacing(self.run_dir / "policy.pt", "wb") as file:
                torch.save(policy.state_dict(), file)
            picture = draw_learning_curve(self.run_dir)
            (self.run_dir / "finished").touch()
        at_random = evaluate(
            None, self._environment, self.cfg.num_eval_episodes, _EVALUATION_SEED + self.cfg.seed
        )
        print(
            f"{_summary(trained)} over {self.cfg.num_eval_episodes} episodes; the random policy "
            f"gets {_summary(at_random).removeprefix('Return ')}."
        )
        for label, path in {
            "learning curve": picture,
            "evaluations": self.run_dir / "eval.csv",
            "training metrics": self.run_dir / "train.csv",
            "policy": self.run_dir / "policy.pt",
        }.items():
            if path is not None:
                print(f"  {label:<17} {path}")


def _check_finite(means: dict[str, float], step: int) -> None:
    for name, mean in means.items():
        if not math.isfinite(mean):
            raise diverged(f"{name} is {mean} at step {step}")


def _summary(result: Evaluation) -> str:
    text = f"Return {result.return_mean:.1f} ± {result.return_std:.1f}"
    if result.success_rate is not None:
        text += f" (success rate {result.success_rate:.2f})"
    return text


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {prefix[:-1]: config}
    return {
        key: value
        for name, item in config.items()
        for key, value in _flat(item, f"{prefix}{name}.").items()
    }
