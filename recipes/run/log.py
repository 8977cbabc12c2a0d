"""What a run writes at every evaluation and every row: its tables, its best policy, its logger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrl_vmfer.plain_state import plain, save_file
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.loggers import make_logger
from vmfer_recipes.run.tables import Evaluation, Table

# The state of a log in which nothing was written.
EMPTY: dict[str, dict[str, Any]] = {
    "evaluations": {"rows": 0, "columns": []},
    "training": {"rows": 0, "columns": []},
    "best": {},
}


class BestPolicy:
    """A file with the policy of the evaluation with the highest mean return.

    Of several evaluations with the same return, the earliest counts. The state holds the policy
    itself, so loading a state restores the file, even if a later policy has replaced it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: dict[str, Any] = {}

    def offer(self, step: int, return_mean: float, policy: Callable[[], dict[str, Any]]) -> None:
        """Writes a copy of a policy's data if the policy is better than all earlier ones."""
        if not self._state or return_mean > self._state["return_mean"]:
            data = plain(policy(), "the policy")
            self.load_state_dict({"step": step, "return_mean": return_mean, "policy": data})

    def state_dict(self) -> dict[str, Any]:
        """Returns the best policy, with the step and the return of its evaluation."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the file as it was when the state was saved."""
        self._state = state
        if state:
            save_file(state["policy"], self._path)
        else:
            self._path.unlink(missing_ok=True)


class RunLog:
    """The files that must match a checkpoint, and the logger that mirrors the tables.

    Loading a state undoes later changes.
    """

    def __init__(self, run_dir: Path, cfg: TrainingConfig) -> None:
        self._evaluations = Table(run_dir / "eval.csv", ("step", *Evaluation._fields))
        self._training = Table(run_dir / "train.csv")
        self._best = BestPolicy(run_dir / "policy_best.pt")
        self._files: dict[str, Table | BestPolicy] = {
            "evaluations": self._evaluations,
            "training": self._training,
            "best": self._best,
        }
        self._run_dir = run_dir
        self._logger = make_logger(cfg, run_dir)

    def clear(self) -> None:
        """Removes all rows, and the policy."""
        self.load_state_dict(EMPTY)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the files, by name."""
        return {name: file.state_dict() for name, file in self._files.items()}

    def check(self, states: dict[str, Any]) -> None:
        """Raises an error if a state cannot be loaded. Changes nothing."""
        self._evaluations.check(states["evaluations"])
        self._training.check(states["training"])

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restores the files as they were when the states were saved."""
        for name, file in self._files.items():
            file.load_state_dict(states[name])

    def write_evaluation(
        self, step: int, result: Evaluation, policy: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """Writes a row of ``eval.csv``, and the policy if it is given and is the best so far."""
        self._evaluations.write({"step": step, **result._asdict()})
        known = {name: value for name, value in result._asdict().items() if value is not None}
        self._mirror("eval", known, step)
        if policy is not None:
            self._best.offer(step, result.return_mean, policy)

    def write_random(self, result: Evaluation) -> None:
        """Writes ``random.csv``: an evaluation of the random policy, with the same seeds."""
        row = {"step": 0, **result._asdict()}
        Table(self._run_dir / "random.csv").rewrite([row], list(row))

    def write_training(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a row of ``train.csv``."""
        self._training.write({"step": step, **metrics})
        self._mirror("train", metrics, step)

    def _mirror(self, prefix: str, metrics: dict[str, float], step: int) -> None:
        if self._logger is not None:
            self._logger.log_metrics({f"{prefix}/{k}": v for k, v in metrics.items()}, step)

    def close(self) -> None:
        """Closes the logger."""
        experiment = getattr(self._logger, "experiment", None)
        for name in ("finish", "close"):  # W&B, TensorBoard; a custom logger may have neither
            if hasattr(experiment, name):
                return getattr(experiment, name)()
