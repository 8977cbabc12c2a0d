"""Where the time of a training step goes, by cProfile, and how many page faults it causes.

    python benchmarks/step_profile.py td3 vmf_uncertainty
    python benchmarks/step_profile.py td3 uniform --size small

cProfile makes every Python function slower, so the fraction of compiled functions is a lower bound.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import sys
from typing import Any, NoReturn

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from contenders import recipe
from workload import SIZES

WARM_UP = 100
# Words in the names of functions, by what they compute.
GROUPS = {
    "compiled updates and actions": ("Updates",),  # methods of the extension module's objects
    "simulator": ("mj_step",),
    "compiled draws and rows": (
        "Ranks",
        "read_rows",
        "write_rows",
        "index_select",
        "store",
        "accept",
        "holds",
    ),
    "random numbers": ("randn", "rand"),
}


def page_faults() -> int:
    """The number of minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Profiler:
    """Takes the place of the pipe through which a contender receives numbers of steps."""

    def __init__(self, steps: int) -> None:
        self._turns = [WARM_UP, steps]
        self._steps, self._faults = steps, 0
        self._profile = cProfile.Profile()

    def recv(self) -> int:
        if len(self._turns) == 1:
            self._faults = page_faults()
            self._profile.enable()
        return self._turns.pop(0) if self._turns else self._report()

    def send(self, result: dict[str, float]) -> None:
        self._profile.disable()
        self._faults = page_faults() - self._faults

    def _report(self) -> NoReturn:
        stats: Any = pstats.Stats(self._profile)
        total, seconds = stats.total_tt, dict.fromkeys(GROUPS, 0.0)
        for (_, _, name), (_, _, own, *_) in stats.stats.items():
            # Built-in functions are named like "<built-in method torch.baddbmm>".
            words = set(name.strip("<>").replace(".", " ").replace("'", "").split())
            for group, names in GROUPS.items():
                if words & set(names):
                    seconds[group] += own
                    break
        seconds["everything else"] = total - sum(seconds.values())
        for group, spent in seconds.items():
            print(f"| {group} | {spent / total:.0%} |")
        print(f"page faults per step: {self._faults / self._steps:.1f}")
        sys.exit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=("td3", "sac"))
    parser.add_argument("sampler")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--filled", type=float, default=1e6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    profiler: Any = Profiler(options.steps)
    size = SIZES[options.size]
    recipe(options.algorithm, int(options.filled), size, options.sampler, None, profiler)


if __name__ == "__main__":
    main()
