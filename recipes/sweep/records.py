"""Records of sweeps: the runs that a sweep consists of, written before the first one starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.run.files import replacing

_PATTERN = "sweep_*.json"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    run_dir: Path  # relative to the working directory of the sweep, or absolute
    algorithm: str
    total_frames: int


def write_record(runs: list[PlannedRun], folder: Path, command: str) -> Path:
    """Records a sweep in ``folder``, and beside its runs if those are elsewhere.

    The name of the file follows from the runs, so that the same sweep has one record however often
    it is started, and other sweeps have others. Directories are relative to the record, which
    therefore stays valid when it is moved together with the runs.
    """
    runs = sorted({*runs}, key=str)
    name = _PATTERN.replace("*", hashlib.sha256(repr(runs).encode()).hexdigest()[:12])
    content = {"command": command, "time": time.time()}
    beside = Path(os.path.commonpath([run.run_dir.absolute().parent for run in runs]))
    try:
        _write(folder / name, content, runs)
    except OSError as error:
        raise UserError(
            f"The record of the sweep {folder / name} cannot be written ({first_line(error)}): "
            "choose another folder with hydra.sweep.dir=."
        ) from error
    if folder.absolute().parent not in (beside, *beside.parents):
        with contextlib.suppress(OSError):  # the first one is enough for this folder
            _write(beside / "sweeps" / name, content, runs)
    return folder / name


def _write(file: Path, content: dict[str, object], runs: list[PlannedRun]) -> None:
    start, entries = file.parent, []
    start.mkdir(parents=True, exist_ok=True)
    for run in runs:
        # An absolute directory that does not lie near the record does not move with it.
        near = start.absolute().parent in run.run_dir.absolute().parents
        is_moved = near or not run.run_dir.is_absolute()
        run_dir = os.path.relpath(run.run_dir, start) if is_moved else str(run.run_dir)
        entries.append({**asdict(run), "run_dir": run_dir})
    with replacing(file) as stream:
        json.dump({**content, "runs": entries}, stream, indent=1)


def read_records(folder: Path) -> tuple[list[PlannedRun], list[str]]:
    """The runs of the sweeps in, below and above a folder, and messages about bad files.

    Of the folders above, only runs that lie under ``folder`` count. If several sweeps have the same
    run, the newest one counts. Directories are absolute.
    """
    folder = folder.resolve()
    planned: dict[Path, tuple[float, PlannedRun]] = {}
    complaints = []
    for file in _files(folder):
        try:
            content = json.loads(file.read_text())
            when = float(content["time"])
            for entry in content["runs"]:
                run_dir = Path(os.path.abspath(file.parent / entry["run_dir"]))
                run = PlannedRun(run_dir, str(entry["algorithm"]), int(entry["total_frames"]))
                if run.total_frames < 1:
                    raise ValueError(f"a run has total_frames={run.total_frames}")
                is_wanted = folder in file.parents or folder in (run.run_dir, *run.run_dir.parents)
                if is_wanted and when >= planned.get(run.run_dir, (when,))[0]:
                    planned[run.run_dir] = (when, run)
        except Exception as error:
            complaints.append(f"{file} is not the record of a sweep ({first_line(error)}).")
    return [run for _, run in planned.values()], complaints


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob(_PATTERN))
    for sweeps in (parent / "sweeps" for parent in folder.parents):
        if os.access(sweeps, os.R_OK | os.X_OK):  # a parent folder may belong to another user
            yield from sorted([*sweeps.glob(_PATTERN), *sweeps.glob(f"*/{_PATTERN}")])
