"""Makes a report of all runs under a folder.

python recipes/report.py runs/ out=report
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from vmfer_recipes.training.command_line import read_folder_and_options
from vmfer_recipes.training.errors import UserError, counted, first_line
from vmfer_recipes.training.keys import Config, key
from vmfer_recipes.training.launch import program


@dataclass
class ReportConfig(Config):
    """Writes a report of all runs under a folder: tables, pictures and one HTML page."""

    out: str = key("report", "directory of the report")


@program
def main() -> None:
    """Writes Markdown, one HTML page, pictures and tables."""
    folder, options = read_folder_and_options(
        "python recipes/report.py <folder of runs>", sys.argv[1:], ReportConfig
    )
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds runs.")
    out = Path(options.out)
    # Imported here, because they need packages that training does not.
    try:
        from vmfer_recipes.reporting.page import write_report
        from vmfer_recipes.reporting.runs import read_runs
        from vmfer_recipes.reporting.study import make_study
    except ImportError as error:
        raise UserError(
            f"The report needs a package that cannot be imported ({first_line(error)}): "
            "pip install '.[report]'."
        ) from error

    runs, left_out = read_runs(folder)
    if not runs:
        reasons = "".join(f"; {item.path}: {item.reason}" for item in left_out[:3])
        raise UserError(f"No runs to report were found under {folder}{reasons}.")
    study = make_study(runs, left_out)
    try:
        files = write_report(study, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error}): choose another out=.") from error
    used = sum(len(cell.runs) for cell in study.cells.values())
    tasks = counted(len(study.tasks), "task")
    print(f"{counted(used, 'run')} on {tasks}; {len(study.left_out)} left out.")
    for file in files:
        print(f"  {file}")


if __name__ == "__main__":
    main()
