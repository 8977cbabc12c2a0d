"""The results of a finished run: whether the task is solved, and where the files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from vmfer_recipes.config.errors import counted
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.offline.scores import reference_returns
from vmfer_recipes.run.tables import Evaluation

__all__ = ["Solved", "print_results", "solved_at"]


class Solved(NamedTuple):
    """The return or success rate at which a task counts as solved."""

    level: float
    is_success_rate: bool

    def includes(self, result: Evaluation) -> bool:
        """Whether the result of an evaluation reaches the level."""
        score = result.success_rate if self.is_success_rate else result.return_mean
        return score is not None and score >= self.level


def solved_at(cfg: Any, reports_success: bool) -> Solved | None:
    """The level of ``solved_at``, or else the reward threshold that Gymnasium registers.

    The threshold is that of the task as registered: it does not hold with other arguments or
    wrappers. If the task reports success, the level is a success rate.
    """
    if cfg.solved_at is not None:
        return Solved(cfg.solved_at, reports_success)
    env = cfg.env
    is_changed = getattr(env, "kwargs", None) or getattr(env, "wrappers", None)
    spec = gym.registry.get(env.name)
    if is_changed or reports_success or spec is None or spec.reward_threshold is None:
        return None
    return Solved(float(spec.reward_threshold), False)


def _summary(
    trained: Evaluation, at_random: Evaluation, episodes: int, solved: Solved | None
) -> str:
    """The result of a run in one line: its last evaluation, and that of the random policy."""
    line = (
        f"Return {_shown(trained)} over {counted(episodes, 'episode')}; the random policy gets "
        f"{_shown(at_random)}."
    )
    if solved is None:
        return line
    level = f"{'success rate' if solved.is_success_rate else 'return'} {solved.level:g}"
    return f"{'Solved' if solved.includes(trained) else 'Not solved'} (at {level}): {line}"


def _shown(result: Evaluation) -> str:
    rate = "" if result.success_rate is None else f" (success rate {result.success_rate:.2f})"
    return f"{result.return_mean:.1f} ± {result.return_std:.1f}{rate}"


def print_results(
    cfg: TrainingConfig,
    run_dir: Path,
    trained: Evaluation,
    at_random: Evaluation | None,
    picture: Path | None,
    checkpoint: Path | None,
) -> None:
    """Prints the last evaluation of a run, that of the random policy, and the files."""
    if at_random is not None:
        solved = solved_at(cfg, trained.success_rate is not None)
        print(_summary(trained, at_random, cfg.num_eval_episodes, solved))
    reference = reference_returns(cfg)
    if reference is not None:
        print(reference.describe(trained))
    for label, file in {
        "learning curve": picture,
        "evaluations": run_dir / "eval.csv",
        "training metrics": run_dir / "train.csv",
        "policy": run_dir / "policy.pt",
        "best policy": run_dir / "policy_best.pt",
        "checkpoint": checkpoint,
    }.items():
        if file is not None:
            size = f" ({_size(file)}, to train longer)" if file == checkpoint else ""
            print(f"  {label:<17} {file}{size}")


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
