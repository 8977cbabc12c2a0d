"""Runs the forks of a plan that are not finished, one after the other."""

from __future__ import annotations

import json
import sys
from typing import Any

from vmfer_recipes.config.errors import UserError, counted, unwritable
from vmfer_recipes.fork.frozen import evaluate_checkpoint, train_actor
from vmfer_recipes.fork.live import continue_training
from vmfer_recipes.fork.plan import Fork, Moment, Plan
from vmfer_recipes.fork.start import load_source
from vmfer_recipes.run.files import LockedError, replacing

__all__ = ["run_forks"]


def run_forks(plan: Plan) -> list[UserError]:
    """Runs all forks that are not finished, except those that another process runs.

    Returns:
        the errors of forks that failed, such as one whose networks diverged.
    """
    failures, elsewhere = [], []
    total, number = len(plan.forks), 0
    for moment in plan.moments:  # all of them, before anything is written
        if _is_waiting(moment):
            load_source(moment.source, mmap=True)
    for moment in plan.moments:
        waiting = [fork for fork in moment.forks if not fork.is_finished]
        number += len(moment.forks) - len(waiting)
        if not _is_waiting(moment):
            continue
        checkpoint = load_source(moment.source)
        if not moment.record.exists():
            _write_record(moment, checkpoint)
        plan.write_settings()  # not before a checkpoint can be used
        for fork in waiting:
            number += 1
            print(f"Fork {number} of {total}: {fork.title}.", file=sys.stderr)
            try:
                _run(fork, plan, checkpoint)
            except LockedError:
                elsewhere.append(fork)
            except UserError as error:
                print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
                failures.append(error)
    running = sum(not fork.is_finished for fork in elsewhere)
    if running:
        print(
            f"Another process runs {counted(running, 'fork')}, skipped here: run the same "
            "command when it has ended.",
            file=sys.stderr,
        )
    return failures


def _is_waiting(moment: Moment) -> bool:
    return not moment.record.exists() or not all(fork.is_finished for fork in moment.forks)


def _run(fork: Fork, plan: Plan, checkpoint: dict[str, Any]) -> None:
    if plan.options.mode == "live":
        continue_training(fork, checkpoint)
    else:
        train_actor(fork, checkpoint, plan.options.length)


def _write_record(moment: Moment, checkpoint: dict[str, Any]) -> None:
    """Evaluates a checkpoint and records the result, for all its forks."""
    result = evaluate_checkpoint(moment, checkpoint)
    record = {
        "run": str(moment.source.run_dir),
        "step": moment.source.step,
        "fingerprint": moment.source.fingerprint(),
        **result._asdict(),
    }
    try:
        moment.path.mkdir(parents=True, exist_ok=True)
        with replacing(moment.record) as file:
            file.write(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise unwritable(moment.path, error) from error
