"""The progress of runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vmfer_recipes.config.errors import first_line
from vmfer_recipes.report.runs import NoTrainingRunError, read_settings
from vmfer_recipes.run.files import checkpoint_files, holder_is_gone, step_of
from vmfer_recipes.run.tables import read_columns
from vmfer_recipes.sweep.records import read_records

__all__ = ["Progress", "read_progress"]


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        state: ``done``, ``running``, ``stopped`` or ``left`` (not started).
        step: the last step in its files.
        start: the step from which it resumes if it is started again.
        speed: recent steps per second, or NaN.
        silence: seconds since one of its files changed, or NaN.
    """

    run_dir: Path
    algorithm: str
    state: str
    step: int
    start: int
    total: int
    speed: float = math.nan
    silence: float = math.nan

    @property
    def remaining(self) -> int:
        """The steps still to be done; a stopped run repeats those since its checkpoint."""
        if self.state == "done":
            return 0
        return self.total - (self.step if self.state == "running" else self.start)


def read_progress(folder: Path, recent: float) -> tuple[list[Progress], list[str]]:
    """The progress of the runs under a folder and of its sweeps, and messages about bad files.

    Args:
        folder: where to look; runs below it are named relative to it.
        recent: a run is running if one of its files changed within this many seconds.
    """
    found: dict[Path, Progress] = {}
    folder = folder.resolve()
    planned, complaints = read_records(folder)
    plans = {plan.run_dir.resolve(): plan for plan in planned}
    begun = {file.parent for file in folder.rglob("config.yaml")}
    begun |= {place for place in plans if (place / "config.yaml").exists()}
    for place in sorted(begun):
        try:
            found[place] = _progress(place, recent)
        except NoTrainingRunError:
            continue
        except Exception as error:
            complaints.append(f"{place} is left out: {first_line(error)}.")
    for place, plan in plans.items():
        if place not in begun:
            found[place] = Progress(place, plan.algorithm, "left", 0, 0, plan.total_frames)
        elif place in found:
            found[place] = _extended(found[place], plan.total_frames)
    return [
        replace(run, run_dir=place.relative_to(folder) if folder in place.parents else place)
        for place, run in found.items()
    ], complaints


def _extended(run: Progress, total: int) -> Progress:
    """A run for which a sweep requests more steps than it was started with."""
    if run.state != "done" or total <= run.total:
        return run
    return replace(run, state="stopped", start=run.step, total=total)


def _progress(run_dir: Path, recent: float) -> Progress:
    config = read_settings(run_dir / "config.yaml")
    total = config["total_frames"]
    checkpoints = checkpoint_files(run_dir / "checkpoint")
    start = max(map(step_of, checkpoints), default=0)
    steps, speeds, silence = [start], [], math.inf
    last_evaluation = -1
    for file in (run_dir / "eval.csv", run_dir / "train.csv"):
        try:
            table = read_columns(file)
            steps.append(int(table["step"][-1]))
            if file.name == "eval.csv":
                last_evaluation = steps[-1]
            speeds += list(table.get("steps_per_second", []))
        except (OSError, ValueError, KeyError, IndexError):
            pass  # a line may be half written just now; the other files say enough
    for file in (run_dir / "config.yaml", *run_dir.glob("*.csv"), *checkpoints):
        silence = min(silence, max(0.0, time.time() - file.stat().st_mtime))
    is_running = silence <= recent and not holder_is_gone(run_dir)
    # Kept runs may consist of their tables only. The last evaluation is that of the last step.
    is_complete = last_evaluation >= total and not is_running
    done = (run_dir / "finished").exists() or is_complete
    state = "done" if done else "running" if is_running else "stopped"
    speed = float(np.nanmedian(speeds[-10:])) if speeds else math.nan
    step = total if done else max(steps)
    return Progress(run_dir, config["algorithm"], state, step, start, total, speed, silence)
