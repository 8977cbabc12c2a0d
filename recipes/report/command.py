"""Makes a report of all runs under a folder.

python recipes/report.py runs/ out=report baseline=fresh until=200000
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program
from vmfer_recipes.report.methods import DEFAULT_BASELINE, Baseline


@dataclass
class ReportConfig(Config):
    """Writes a report of all runs under a folder: tables, pictures and one HTML page."""

    out: str = key("report", "directory of the report")
    baseline: str = key(
        DEFAULT_BASELINE,
        "what the others are compared with: a sampler, or pairs such as replay=per,sampler=fresh",
    )
    until: int | None = key(None, "last step that counts; null: the end of each run", low=1)


@program
def main() -> None:
    """Writes Markdown, one HTML page, pictures and tables."""
    folder, options = read_folder_and_options(
        "python recipes/report.py <folder of runs>", sys.argv[1:], ReportConfig
    )
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds runs.")
    out = Path(options.out)
    # Imported here, because they are slow and need packages that training does not.
    try:
        from vmfer_recipes.report.page import check_folder, summary, write_report
        from vmfer_recipes.report.runs import read_runs
        from vmfer_recipes.report.study import make_study
    except (ImportError, TypeError) as error:  # the latter from rliable's arch with pandas 3
        raise UserError(
            f"The report needs a package that cannot be imported ({first_line(error)}): "
            "pip install '.[report]'."
        ) from error

    check_folder(out)
    runs, left_out = read_runs(folder, options.until)
    if not runs:
        reasons = "".join(f"; {item.path}: {item.reason}" for item in left_out[:3])
        raise UserError(f"No runs to report were found under {folder}{reasons}.")
    study = make_study(runs, left_out, Baseline(options.baseline))
    try:
        files = write_report(study, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error}): choose another out=.") from error
    used = sum(len(cell.runs) for cell in study.cells)
    tasks = counted(len(study.task_labels), "task")
    print(f"{counted(used, 'run')} on {tasks}; {len(study.left_out)} left out.")
    print(*summary(study), "Files:", *(f"  {file}" for file in files), sep="\n")
