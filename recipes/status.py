"""Shows the progress of the runs under a folder.

python recipes/status.py runs/
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program
from vmfer_recipes.config.saved import NoTrainingRunError, read_training_config
from vmfer_recipes.run.files import checkpoint_files, holder_is_gone, step_of
from vmfer_recipes.run.tables import aligned, read_columns
from vmfer_recipes.sweep.records import read_records

_ORDER = ("running", "stopped", "left", "done")


@dataclass
class StatusConfig(Config):
    """Shows the progress of all runs under a folder."""

    recent: float = key(
        300, "a run counts as running if one of its files changed in this many seconds", low=1e-9
    )


@program
def main() -> None:
    """Prints a line per run and a summary."""
    folder, options = read_folder_and_options(
        "python recipes/status.py <folder of runs>", sys.argv[1:], StatusConfig
    )
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds runs.")
    runs, complaints = read_progress(folder, options.recent)
    for complaint in complaints:
        print(f"warning: {complaint}", file=sys.stderr)
    if not runs:
        raise UserError(f"No runs were found under {folder}.")
    runs.sort(key=lambda run: (_ORDER.index(run.state), run.run_dir.as_posix()))
    seconds = _seconds_left(runs)
    head = ("run", "state", "steps", "of", "steps/s", "time left", "last sign")
    lines = map(_line, runs, seconds)
    print(*aligned([head, *lines], left=2), sep="\n")
    print(_summary(runs, seconds))
    print(
        f"A run counts as running if one of its files changed in the last {_time(options.recent)} "
        "(recent=seconds) and its process still exists. Runs that have not started (left) are "
        "read from the records of sweeps (sweep_*.json); delete a record to remove its sweep. "
        "Time left excludes evaluations."
    )


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    run_dir: Path
    algorithm: str
    state: str  # done, running, stopped or left (not started)
    step: int  # the last one in its files
    start: int  # the step from which it resumes if it is started again
    total: int
    speed: float = math.nan  # recent steps per second
    silence: float = math.nan  # seconds since one of its files changed

    @property
    def remaining(self) -> int:
        """The steps still to be done; a stopped run repeats those since its checkpoint."""
        if self.state == "done":
            return 0
        return self.total - (self.step if self.state == "running" else self.start)


def read_progress(folder: Path, recent: float) -> tuple[list[Progress], list[str]]:
    """The progress of the runs under a folder and of its sweeps, and messages about bad files.

    Runs below the folder are named relative to it. A run is running if one of its files changed
    within ``recent`` seconds.
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
        run = found.get(place)
        if place not in begun:
            found[place] = Progress(place, plan.algorithm, "left", 0, 0, plan.total_frames)
        elif run is not None and run.state == "done" and run.total < plan.total_frames:
            # The sweep requests more steps than the run was started with.
            found[place] = replace(run, state="stopped", start=run.step, total=plan.total_frames)
    return [
        replace(run, run_dir=place.relative_to(folder) if folder in place.parents else place)
        for place, run in found.items()
    ], complaints


def _progress(run_dir: Path, recent: float) -> Progress:
    config = read_training_config(run_dir)
    total = config["total_frames"]
    checkpoints = checkpoint_files(run_dir / "checkpoint")
    start = max(map(step_of, checkpoints), default=0)
    last, speed = {"eval.csv": -1, "train.csv": -1}, math.nan
    for name in last:
        # While a line is being written, the other files are enough.
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            table = read_columns(run_dir / name)
            last[name] = int(table["step"][-1])
            speeds = table["steps_per_second"][-10:].tolist()
            speed = statistics.median(filter(math.isfinite, speeds))
    files = (run_dir / "config.yaml", *run_dir.glob("*.csv"), *checkpoints)
    silence = max(0.0, time.time() - max(file.stat().st_mtime for file in files))
    is_running = silence <= recent and not holder_is_gone(run_dir)
    # Kept runs may consist of their tables only. The last evaluation is that of the last step.
    is_complete = last["eval.csv"] >= total and not is_running
    done = (run_dir / "finished").exists() or is_complete
    state = "done" if done else "running" if is_running else "stopped"
    step = total if done else max(start, *last.values())
    return Progress(run_dir, config["algorithm"], state, step, start, total, speed, silence)


def _seconds_left(runs: list[Progress]) -> list[float]:
    """Estimates the time of each run from its speed, or from the median speed of its algorithm."""
    speeds: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.speed > 0:
            speeds[run.algorithm].append(run.speed)
    usual = {algorithm: statistics.median(values) for algorithm, values in speeds.items()}
    return [
        run.remaining / (run.speed if run.speed > 0 else usual.get(run.algorithm, math.nan))
        if run.remaining
        else 0.0
        for run in runs
    ]


def _line(run: Progress, seconds: float) -> tuple[str, ...]:
    return (
        run.run_dir.as_posix(),
        run.state,
        f"{run.step:,}",
        f"{run.total:,}",
        f"{run.speed:.1f}" if math.isfinite(run.speed) else "–",
        "–" if run.state == "done" else _time(seconds),
        "–" if math.isnan(run.silence) else f"{_time(run.silence)} ago",
    )


def _summary(runs: list[Progress], seconds: list[float]) -> str:
    count = Counter(run.state for run in runs)
    done, total = sum(run.step for run in runs), sum(run.total for run in runs)
    known = [each for each in seconds if math.isfinite(each)]
    text = ", ".join(f"{count[state]} {state}" for state in ("done", "running", "stopped", "left"))
    text += f"; {done:,} of {total:,} steps ({done / total:.0%}); {_time(sum(known))} of work left"
    if count["running"] > 1:
        text += f", {_time(sum(known) / count['running'])} with {count['running']} at a time"
    if unknown := len(runs) - len(known):
        text += f", not counting {counted(unknown, 'run')} of unknown speed"
    return text + "."


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
