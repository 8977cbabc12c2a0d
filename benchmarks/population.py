"""Aggregate speed of populations, beside single runs and SBX: environment steps per second.

All on one core, Reacher-v5, with sampler=vmf_rank (SBX has no such choice). A complete run takes
less than 10 minutes; nothing else should be running. SBX is left out if it is not installed.

    python benchmarks/population.py
    python benchmarks/population.py --algorithms sac --sizes 64x64/64 --members 1 32
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from vmfer_recipes.run.session import Averages, TrainingSession

WARM_UP = 300  # the first 200 steps are random
SIZES = ("64x64/64", "64x64/128", "128x128/128", "256x256/256")


def configuration(algorithm: str, folder: Path, seed: int, options: list[str]) -> Any:
    """A run without evaluations and files between its first and its last step."""
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        overrides = [
            *(f"seed={seed}", "init_random_frames=200", "total_frames=1000000"),
            *("eval_interval=1000000", "num_eval_episodes=1", "checkpoint_interval=1000000"),
            *("log_interval=1000", f"run_dir={folder / str(seed)}", "replay.buffer_size=100000"),
            *options,
        ]
        return to_config(compose(algorithm, overrides))


def rate(take: Callable[[int], Any], count: int, seconds: float) -> float:
    """The median number of steps per second in 5 turns, of which each lasts a fifth of the time.

    Args:
        take: takes a number of steps of each member.
        count: the number of members.
        seconds: the time of all turns.
    """
    begun = time.perf_counter()
    take(10)
    steps = max(2, int(10 * seconds / 5 / (time.perf_counter() - begun)))
    speeds = []
    for _ in range(5):
        begun = time.perf_counter()
        take(steps)
        speeds.append(count * steps / (time.perf_counter() - begun))
    return statistics.median(speeds)


def population_speed(algorithm: str, count: int, options: list[str], seconds: float) -> float:
    """The speed of all members together."""
    interruption = Interruption()  # not entered: signals end the benchmark
    with tempfile.TemporaryDirectory() as folder:
        members = [
            Member(
                configuration(algorithm, Path(folder), seed, options),
                maker(algorithm),
                interruption,
            )
            for seed in range(count)
        ]
        population = Population(members, [member.start() for member in members], interruption)
        chosen, done = list(range(count)), 0

        def take(steps: int) -> None:
            nonlocal done
            for step in range(done + 1, done + steps + 1):
                population.take(step, chosen)
            done += steps

        take(WARM_UP)
        found = rate(take, count, seconds)
        for member in members:
            member.fail(RuntimeError())
    gc.collect()
    return found


class Turns(TrainingSession):
    """The session of a single run, which measures its speed and then ends."""

    def __init__(self, seconds: float) -> None:
        self.metrics = Averages()
        self._seconds, self.speed = seconds, 0.0

    def steps(self, policy: Any, **components: Any) -> Iterator[int]:
        """Yields steps for a while, in turns."""
        yield from range(1, WARM_UP + 1)
        step, speeds = WARM_UP, []
        for _ in range(5):
            first, begun = step, time.perf_counter()
            while time.perf_counter() < begun + self._seconds / 5:
                step += 1
                yield step
            speeds.append((step - first) / (time.perf_counter() - begun))
        self.speed = statistics.median(speeds)


def single_speed(algorithm: str, options: list[str], seconds: float) -> float:
    """The speed of a run of ``td3.py`` or ``sac.py``."""
    module: Any = importlib.import_module(f"vmfer_recipes.{algorithm}")
    with tempfile.TemporaryDirectory() as folder:
        cfg = configuration(algorithm, Path(folder), 0, options)
        torch.manual_seed(0)
        session = Turns(seconds)
        module.train(cfg, session, module.make_agent(cfg))
    return session.speed


def sbx_speed(algorithm: str, env: str, size: str, seconds: float, python: Path) -> float:
    """The speed of SBX, in a process with an environment of its own."""
    script = Path(__file__).with_name("sbx_contender.py")
    process = subprocess.Popen(
        [python, script, algorithm, "10000", env, size],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )

    def take(steps: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        print(steps, file=process.stdin, flush=True)
        float(process.stdout.readline())

    take(WARM_UP)  # compiles
    found = rate(take, 1, seconds)
    process.kill()
    process.wait()
    return found


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else []:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["td3", "sac"])
    parser.add_argument("--members", nargs="+", type=int, default=[1, 4, 16, 32, 64])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--env", default="Reacher-v5")
    parser.add_argument("--seconds", type=float, default=3, help="of each number")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--jax-python", type=Path, default=Path(".venv-jax/bin/python"))
    given = parser.parse_args()
    os.sched_setaffinity(0, {given.core})
    torch.set_num_threads(1)
    quiet_torchrl()
    has_sbx = given.jax_python.exists()
    if not has_sbx:
        print(f"SBX is left out: there is no {given.jax_python}.", file=sys.stderr)
    begun = time.perf_counter()
    columns = ["SBX"] * has_sbx + ["single run", *(f"{n} members" for n in given.members)]
    columns[-len(given.members)] = columns[-len(given.members)].replace("1 members", "1 member")
    print(f"Steps per second of all members, {given.env}, one core of {processor()}:\n")
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
    for algorithm in given.algorithms:
        for size in given.sizes:
            hidden, batch = size.split("/")
            options = [
                *(f"env={given.env}", f"hidden=[{hidden.replace('x', ',')}]"),
                *(f"batch_size={batch}", "sampler=vmf_rank"),
            ]
            found = [single_speed(algorithm, options, given.seconds)]
            if has_sbx:
                peer = sbx_speed(algorithm, given.env, size, given.seconds, given.jax_python)
                found.insert(0, peer)
            for count in given.members:
                found.append(population_speed(algorithm, count, options, given.seconds))
            cells = " | ".join(f"{value:,.0f}" for value in found)
            name = f"{algorithm.upper()}, {hidden.replace('x', '×')}, batch {batch}"
            print(f"| {name} | {cells} |", flush=True)
    print(f"\n{(time.perf_counter() - begun) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
