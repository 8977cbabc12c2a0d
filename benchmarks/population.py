"""Aggregate speed of populations, single runs and SBX, in environment steps per second.

All share one core and take turns, with 10⁴ transitions in each buffer and without evaluations. Ours
use sampler=vmf_rank; SBX samples uniformly, and is left out if it is not installed. The last table
shows where the time of a step goes. A complete run takes about 10 minutes; nothing else should be
running.

    python benchmarks/population.py
    python benchmarks/population.py --algorithms sac --sizes 64x64/64 --members 1 32
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import BenchmarkSession, fill, transitions_tensordict
from hydra import compose, initialize_config_module
from throughput import Contender, processor, start_sbx

import vmfer_recipes.config.algorithms  # noqa: F401  # registers their configurations
from torchrl_vmfer.compiled.extension import modules
from vmfer_recipes.config.launch import quiet_torchrl
from vmfer_recipes.config.training import to_config
from vmfer_recipes.population import members as members_module
from vmfer_recipes.population.members import Member
from vmfer_recipes.population.training import Population, maker
from vmfer_recipes.run.interruption import Interruption

FILLED, WARM_UP, TURNS = 10_000, 20, 5
SIZES = ("64x64/64", "64x64/128", "128x128/128", "256x256/256")
PARTS = ("simulator", "compiled updates", "batches", "random numbers", "storing", "priorities")


def configuration(algorithm: str, folder: Path, seed: int, options: list[str]) -> Any:
    """A run without evaluations and files between its first and its last step."""
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        overrides = [
            *(f"seed={seed}", "init_random_frames=0", "total_frames=1000000"),
            *("eval_interval=1000000", "num_eval_episodes=1", "checkpoint_interval=1000000"),
            *("log_interval=1000", f"run_dir={folder / str(seed)}", "replay.buffer_size=100000"),
            *options,
        ]
        return to_config(compose(algorithm, overrides))


def serve(
    algorithm: str,
    count: int,
    options: list[str],
    folder: str,
    is_watched: bool,
    connection: Connection,
) -> None:
    """Takes the numbers of steps received through the connection, and sends the seconds.

    Args:
        algorithm: ``"td3"`` or ``"sac"``.
        count: the number of members, 0 for a single run.
        options: the configuration.
        folder: where the runs have their directories.
        is_watched: whether to send the seconds of the parts of a step, too.
        connection: the connection.
    """
    torch.set_num_threads(1)
    quiet_torchrl()
    place = Path(folder) / f"{count}-{is_watched}"
    configs = [configuration(algorithm, place, seed, options) for seed in range(count or 1)]
    rows = transitions_tensordict(configs[0].env.name, FILLED)
    if not count:
        torch.manual_seed(0)
        module: Any = importlib.import_module(f"vmfer_recipes.{algorithm}")
        agent = module.make_agent(configs[0])
        fill(agent.buffer, rows)
        module.train(configs[0], BenchmarkSession(connection), agent)
    interruption = Interruption()  # not entered: signals end the benchmark
    members = [Member(cfg, maker(algorithm), interruption) for cfg in configs]
    population = Population(members, [member.start() for member in members], interruption)
    for member in members:
        fill(member.agent.buffer, rows)
    parts: dict[str, float] = defaultdict(float)
    if is_watched:
        watch(population, members, parts)
    chosen, done = list(range(count)), 0
    while True:
        steps = connection.recv()
        parts.clear()
        begun = time.perf_counter()
        for step in range(done + 1, done + steps + 1):
            population.take(step, chosen)
        connection.send({"step": time.perf_counter() - begun, **parts})
        done += steps


def watch(population: Any, members: list[Member], parts: dict[str, float]) -> None:
    """Adds up the seconds of the parts of a step."""

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                parts[part] += time.perf_counter() - begun

        return timed_call

    def replace(owner: Any, part: str, *methods: str) -> None:
        for method in methods:
            setattr(owner, method, timed(part, getattr(owner, method)))

    simulators, updates = population._simulators, population._updates
    step = simulators.step  # returns a function, which may take the step
    simulators.step = timed("simulator", lambda *args: timed("simulator", step(*args)))
    replace(updates, "compiled updates", "act", "update_critics", "update_actor", "update_targets")
    replace(members_module, "storing", "append_rows")
    for member in members:
        buffer: Any = member.agent.buffer
        replace(member, "batches", "read")
        replace(member, "random numbers", "draw_normal")
        replace(buffer.critic_sampler, "batches", "sample")
        replace(buffer.actor_sampler, "batches", "sample")
        replace(buffer.actor_sampler, "priorities", "update_priority")
        replace(member.collector.env.simulator, "simulator", "reset")


def start(
    algorithm: str, count: int, options: list[str], folder: str, is_watched: bool = False
) -> Contender:
    """A single run or a population, in its own process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    args = (algorithm, count, options, folder, is_watched, theirs)
    process = context.Process(target=serve, args=args, daemon=True)
    process.start()

    def run(steps: int) -> dict[str, float]:
        ours.send(steps)
        return ours.recv()

    return Contender(process, run)


def take_turns(contenders: list[Contender], seconds: float) -> list[int]:
    """Lets each contender run for some seconds. Returns the numbers of steps of their turns."""
    for contender in contenders:
        contender.run(WARM_UP)  # also waits until it has been made
    counts = [
        max(2, int(4 * seconds / TURNS / contender.run(4)["step"])) for contender in contenders
    ]
    for turn in range(TURNS):
        order = list(zip(contenders, counts, strict=True))
        for contender, count in order[:: 1 if turn % 2 else -1]:
            contender.rounds.append(contender.run(count))
    for contender in contenders:
        contender.process.kill()
    return counts


def main() -> None:
    """Prints two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["td3", "sac"])
    parser.add_argument("--members", nargs="+", type=int, default=[1, 4, 16, 32, 64])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--env", default="Reacher-v5")
    parser.add_argument("--seconds", type=float, default=3, help="of each number")
    parser.add_argument("--shares", type=int, default=32, help="members of the second table")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--jax-python", type=Path, default=Path(".venv-jax/bin/python"))
    given = parser.parse_args()
    os.sched_setaffinity(0, {given.core})
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes started below
    peers = ["SBX"] if given.jax_python.exists() else []
    if not peers:
        print(f"SBX is left out: there is no {given.jax_python}.", file=sys.stderr)
    begun = time.perf_counter()
    print(f"`python benchmarks/population.py {' '.join(sys.argv[1:])}`".replace(" `", "`"))
    print(f"{processor()}, {next(iter(modules()))}, core {given.core}, {given.env}.")
    print("Steps per second of all members and, in parentheses, divided by those of a single run:")
    columns = [*peers, "single run", *(f"{n} member{'s' * (n > 1)}" for n in given.members)]
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
    shares = []
    for algorithm in given.algorithms:
        for size in given.sizes:
            hidden, batch = size.split("/")
            name = f"{algorithm.upper()}, {hidden.replace('x', '×')}, batch {batch}"
            options = [
                *(f"env={given.env}", f"hidden=[{hidden.replace('x', ',')}]"),
                *(f"batch_size={batch}", "sampler=vmf_rank"),
            ]
            with tempfile.TemporaryDirectory() as folder:
                contenders = [
                    start_sbx(given.jax_python, algorithm, FILLED, given.env, size) for _ in peers
                ]
                runs = (0, *given.members)
                contenders += [start(algorithm, count, options, folder) for count in runs]
                if given.shares:
                    contenders.append(start(algorithm, given.shares, options, folder, True))
                counts = take_turns(contenders, given.seconds)
            sizes = [1 for _ in peers] + [count or 1 for count in runs]
            speeds = [
                size * count / contender.seconds()
                for size, count, contender in zip(sizes, counts, contenders, strict=False)
            ]
            single = speeds[len(peers)]
            cells = [f"{np.median(speed):,.0f}" for speed in speeds]
            for place in range(len(peers) + 1, len(cells)):
                cells[place] += f" ({np.median(speeds[place] / single):.2f})"
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            if given.shares:
                shares.append((name, contenders[-1]))
    if shares:
        header = " | ".join([*PARTS, "rest"])
        print(f"\nShares of a step of {given.shares} members:\n\n| | {header} |")
        print(f"|---|{'---:|' * (len(PARTS) + 1)}")
    for name, contender in shares:
        total = contender.seconds().sum()
        found = [sum(turn.get(part, 0.0) for turn in contender.rounds) / total for part in PARTS]
        cells = [f"{share:.0%}" for share in (*found, 1 - sum(found))]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\n{(time.perf_counter() - begun) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
