"""Makes a report of all runs under a folder.

python recipes/report.py runs/ out=report
"""

from __future__ import annotations

import sys
from pathlib import Path

from vmfer_recipes.training.errors import UserError
from vmfer_recipes.training.launch import program


@program
def main() -> None:
    """Writes Markdown, one HTML page, pictures and tables."""
    folder, out = _arguments(sys.argv[1:])
    # Here, for they need packages that training does not, and say so if these are missing.
    from vmfer_recipes.reporting.page import write_report
    from vmfer_recipes.reporting.runs import read_runs
    from vmfer_recipes.reporting.study import make_study

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
    print(f"{used} runs on {len(study.tasks)} tasks; {len(study.left_out)} left out.")
    for file in files:
        print(f"  {file}")


def _arguments(arguments: list[str]) -> tuple[Path, Path]:
    folders = [argument for argument in arguments if "=" not in argument]
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    unknown = options.keys() - {"out"}
    if len(folders) != 1 or unknown:
        raise UserError("Usage: python recipes/report.py <folder of runs> [out=report]")
    folder = Path(folders[0])
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds runs.")
    return folder, Path(options.get("out") or "report")


if __name__ == "__main__":
    main()
