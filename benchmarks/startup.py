"""Time until a recipe answers a question, reports a mistake, or takes its first training step.

Every command runs in its own process, in turns; ratios to `import torchrl, mujoco` are taken within
a round, so that the noise of the machine affects all of them alike.

    python benchmarks/startup.py --rounds 7
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RECIPES = Path(__file__).parents[1] / "recipes"
# Ends a recipe right after its first environment step.
FIRST_STEP = """
import os, runpy, sys
from vmfer_recipes.config import launch
script = sys.argv[1]
sys.argv = sys.argv[1:]
recipe = launch.recipe
def stopping(*arguments):
    from vmfer_recipes.collection.collectors import SingleCollector
    collect = SingleCollector.collect
    def collect_and_stop(self):
        collect(self)
        os._exit(0)
    SingleCollector.collect = collect_and_stop
    return recipe(*arguments)
launch.recipe = stopping
runpy.run_path(script, run_name="__main__")
"""
BASE = "import torchrl, mujoco"


def commands(folder: str) -> dict[str, list[str]]:
    python = sys.executable

    def script(name: str, *arguments: str) -> list[str]:
        return [python, str(RECIPES / f"{name}.py"), *arguments]

    run = [str(RECIPES / "td3.py"), "env=Hopper-v4"]
    return {
        BASE: [python, "-c", BASE],
        "td3.py env=Hopper-v4, to the first training step": [python, "-c", FIRST_STEP, *run],
        "td3.py --help": script("td3", "--help"),
        "td3.py sede=3 (no such key)": script("td3", "sede=3"),
        "td3.py gamma=2 (out of range)": script("td3", "gamma=2"),
        "evaluate.py --help": script("evaluate", "--help"),
        "status.py": script("status", folder),
    }


def measure(command: list[str], folder: str) -> tuple[float, float]:
    """Wall-clock seconds and CPU seconds."""
    # A new directory for each, so that no run resumes another.
    with tempfile.TemporaryDirectory(dir=folder) as cwd:
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=cwd, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - start, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = commands(folder)
        rounds = [
            {name: measure(command, folder) for name, command in known.items()}
            for _ in range(options.rounds + 1)
        ][1:]  # the first fills the caches of the disk
    print(f"| | seconds | CPU seconds | seconds / `{BASE}` |\n|---|---:|---:|---:|")
    for name in known:
        seconds, used = np.median([each[name] for each in rounds], axis=0)
        ratio = np.median([each[name][0] / each[BASE][0] for each in rounds])
        print(f"| `{name}` | {seconds:.2f} | {used:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
