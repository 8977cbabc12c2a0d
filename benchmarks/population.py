"""Aggregate speed of populations: environment steps per second of all members.

python benchmarks/population.py --members 1 4 16 32 --sizes 64x64/64 --env Reacher-v5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module

import vmfer_recipes.config.algorithms  # noqa: F401  # registers their configurations
from vmfer_recipes.config.launch import quiet_torchrl
from vmfer_recipes.config.training import to_config
from vmfer_recipes.population.members import Member
from vmfer_recipes.population.training import Population, maker
from vmfer_recipes.run.interruption import Interruption


def configuration(algorithm: str, folder: Path, seed: int, options: list[str]) -> Any:
    """A run without evaluations and files between its first and its last step."""
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        overrides = [
            *(f"seed={seed}", "init_random_frames=500", "total_frames=1000000"),
            *("eval_interval=1000000", "num_eval_episodes=1", "checkpoint_interval=1000000"),
            *("log_interval=1000", f"run_dir={folder / str(seed)}", "replay.buffer_size=100000"),
            *options,
        ]
        return to_config(compose(algorithm, overrides))


def speed(algorithm: str, count: int, size: str, env: str, steps: int) -> float:
    """The steps per second of all members, while they learn."""
    hidden, batch = size.split("/")
    options = [f"env={env}", f"hidden=[{hidden.replace('x', ',')}]", f"batch_size={batch}"]
    interruption = Interruption()  # not entered: signals end the benchmark
    with tempfile.TemporaryDirectory() as folder:
        members = []
        for seed in range(count):
            cfg = configuration(algorithm, Path(folder), seed, [*options, "sampler=vmf_rank"])
            members.append(Member(cfg, maker(algorithm), interruption))
        population = Population(members, [member.start() for member in members], interruption)
        chosen = list(range(count))
        for step in range(1, 601):
            population.take(step, chosen)
        times = []
        for first in range(601, 601 + steps, steps // 4):
            begun = time.process_time()
            for step in range(first, first + steps // 4):
                population.take(step, chosen)
            times.append(time.process_time() - begun)
        for member in members:
            member.fail(RuntimeError())
    return count * (steps // 4) / statistics.median(times)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["td3"])
    parser.add_argument("--members", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--sizes", nargs="+", default=["64x64/64", "128x128/128", "256x256/256"])
    parser.add_argument("--env", default="Reacher-v5")
    parser.add_argument("--steps", type=int, default=400, help="of each member, after 600")
    given = parser.parse_args()
    torch.set_num_threads(1)
    quiet_torchrl()
    print("| | " + " | ".join(map(str, given.members)) + " |")
    print("|---|" + "---:|" * len(given.members))
    for algorithm in given.algorithms:
        for size in given.sizes:
            found = [speed(algorithm, n, size, given.env, given.steps) for n in given.members]
            cells = " | ".join(f"{value:,.0f}" for value in found)
            print(f"| {algorithm} {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
