"""Shows the progress of the runs under a folder.

python recipes/status.py runs/
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program
from vmfer_recipes.report.progress import Progress, read_progress

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
    speeds = _typical_speeds(runs)
    lines: list[tuple[str, ...]] = [
        ("run", "state", "steps", "of", "steps/s", "time left", "last sign")
    ]
    lines += [_line(run, speeds) for run in runs]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, state, *numbers in lines:
        cells = [name.ljust(widths[0]), state.ljust(widths[1])]
        print("  ".join([*cells, *map(str.rjust, numbers, widths[2:])]))
    print(_summary(runs, speeds))
    print(
        f"A run counts as running if one of its files changed in the last {_time(options.recent)} "
        "(recent=seconds) and its process still exists. Runs that have not started (left) are "
        "read from the records of sweeps (sweep_*.json); delete a record to remove its sweep. "
        "Time left excludes evaluations."
    )


def _typical_speeds(runs: list[Progress]) -> dict[str, float]:
    """By algorithm, for runs that have no speed of their own yet."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        if math.isfinite(run.speed) and run.speed > 0:
            speeds.setdefault(run.algorithm, []).append(run.speed)
    return {algorithm: statistics.median(values) for algorithm, values in speeds.items()}


def _seconds_left(run: Progress, speeds: dict[str, float]) -> float:
    speed = run.speed if run.speed > 0 else speeds.get(run.algorithm, math.nan)
    return run.remaining / speed if run.remaining else 0.0


def _line(run: Progress, speeds: dict[str, float]) -> tuple[str, ...]:
    return (
        run.run_dir.as_posix(),
        run.state,
        f"{run.step:,}",
        f"{run.total:,}",
        f"{run.speed:.1f}" if math.isfinite(run.speed) else "–",
        "–" if run.state == "done" else _time(_seconds_left(run, speeds)),
        "–" if math.isnan(run.silence) else f"{_time(run.silence)} ago",
    )


def _summary(runs: list[Progress], speeds: dict[str, float]) -> str:
    count = Counter(run.state for run in runs)
    done, total = sum(run.step for run in runs), sum(run.total for run in runs)
    seconds = [_seconds_left(run, speeds) for run in runs]
    known = sum(second for second in seconds if math.isfinite(second))
    text = ", ".join(f"{count[state]} {state}" for state in ("done", "running", "stopped", "left"))
    text += f"; {done:,} of {total:,} steps ({done / total:.0%})"
    unknown = sum(not math.isfinite(second) for second in seconds)
    if unknown:
        which = "1 run is" if unknown == 1 else f"{unknown} runs is"
        text += f"; the speed of {which} not known yet"
    if known or not unknown:
        text += f"; {_time(known)} of work left"
        if unknown:
            text += " in the other" + ("" if len(runs) - unknown == 1 else "s")
        if count["running"] > 1:
            text += f", {_time(known / count['running'])} with {count['running']} at a time"
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
