"""Continues several methods from the same checkpoints of runs and compares their returns.

python recipes/fork.py run=runs/td3/Hopper-v4/uniform-fresh/seed0 at=100000 arms=[fresh,vmf_rank]
"""

from __future__ import annotations

import sys

from vmfer_recipes.config.command_line import read_options
from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.config.launch import program, quiet_torchrl
from vmfer_recipes.fork.plan import ForkConfig, make_plan


@program
def main() -> None:
    """Runs the forks that are not finished, then writes their table, figures and report."""
    options = read_options("python recipes/fork.py", sys.argv[1:], ForkConfig)
    plan = make_plan(options)
    # Imported here to keep --help and error messages fast.
    try:
        from vmfer_recipes.fork.report import write_report
        from vmfer_recipes.fork.running import run_forks
    except ImportError as error:
        raise UserError(
            f"Forks require a package that could not be imported ({first_line(error)}): "
            "pip install '.[recipes,report]'."
        ) from error

    quiet_torchrl()
    failures = run_forks(plan)
    if lines := write_report(plan):
        print(*lines, sep="\n")
    if failures:
        raise UserError(
            f"{counted(len(failures), 'fork')} failed, the first one with: {failures[0]} The "
            "others have ended; run the same command to try again."
        )
