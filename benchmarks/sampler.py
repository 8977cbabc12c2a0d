"""Cost of one sample and one priority update of 256 transitions, by sampler and buffer size.

Every sampler does the same work on the same storage in turns, so that the noise of the machine
affects all alike; ratios are taken within a turn, and the median over the turns is reported.

    python benchmarks/sampler.py                  # 10⁴ to 10⁷ transitions, a few minutes
    python benchmarks/sampler.py --sizes 1e4 1e6
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

BATCH = 256
PEER = "torchrl PrioritizedSampler"
SORTING = "argsort + multinomial"


class ArgsortSampler:
    """The plain way to sample by rank: sort the whole buffer for each batch."""

    def __init__(self, size: int) -> None:
        self.factors = torch.ones(size)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draws by the rank of the current factors."""
        order = self.factors.argsort(descending=True)
        probabilities = 1 / torch.arange(1, len(order) + 1)
        return order[torch.multinomial(probabilities, batch_size, replacement=True)], {}

    def update_priority(self, index: Tensor, priority: Tensor, *, storage: Storage) -> None:
        """Sets factors."""
        self.factors[index] = priority


SAMPLERS: dict[str, Callable[[int], Any]] = {
    PEER: lambda size: PrioritizedSampler(size, alpha=0.6, beta=0.4),
    "VMFSampler uncertainty": lambda size: VMFSampler("uncertainty"),
    "VMFSampler power 8": lambda size: VMFSampler(power=8),
    "VMFSampler rank": lambda size: VMFSampler("rank"),
    "RankPrioritizedSampler": lambda size: RankPrioritizedSampler(alpha=0.7, beta=0.5),
    SORTING: ArgsortSampler,
}


def random_factors(count: int) -> Tensor:
    return 1 + torch.rand(count) * (math.e - 1) * 0.999


def filled_storage(size: int) -> Storage:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size))
    buffer.extend(TensorDict({"reward": torch.zeros(size, dtype=torch.uint8)}, [size]))
    return buffer.storage


def filled_sampler(name: str, storage: Storage) -> Any:
    size = len(storage)
    sampler = SAMPLERS[name](size)
    sampler.update_priority(torch.arange(size), random_factors(size), storage=storage)
    sampler.sample(storage, BATCH)
    return sampler


def seconds_per_cycle(sampler: Any, storage: Storage, cycles: int) -> float:
    factors = random_factors(cycles * BATCH).view(cycles, BATCH)
    start = time.perf_counter()
    for factor in factors:
        index, _ = sampler.sample(storage, BATCH)
        sampler.update_priority(index, factor, storage=storage)
    return (time.perf_counter() - start) / cycles


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(name: str, size: int) -> float:
    """MiB that this process grows by when it makes a sampler and uses it."""
    storage = filled_storage(size)
    before = resident_bytes()
    sampler = filled_sampler(name, storage)
    seconds_per_cycle(sampler, storage, cycles=2 if name == SORTING else 100)
    return (resident_bytes() - before) / 2**20


def memory_of(name: str, size: int) -> str:
    """The same in a fresh process, where no freed memory is used again."""
    command = [sys.executable, __file__, "--memory", name, "--sizes", str(size)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"{float(output.splitlines()[-1]):.1f}"


def time_cycles(size: int, turns: int) -> dict[str, list[float]]:
    """Seconds per cycle of each sampler, turn by turn."""
    storage = filled_storage(size)
    samplers = {name: filled_sampler(name, storage) for name in SAMPLERS}
    times: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for _ in range(turns):
        for name, sampler in samplers.items():
            if name == SORTING:
                # Sorting is slow and always takes the same time, so a few repetitions suffice.
                if size <= 1e6 or not times[name]:
                    times[name].append(seconds_per_cycle(sampler, storage, cycles=2))
            else:
                times[name].append(seconds_per_cycle(sampler, storage, cycles=100))
    return times


def time_persistence(size: int) -> dict[str, list[float]]:
    """Seconds for state_dict, dumps and loads."""
    storage = filled_storage(size)
    results = {}
    for name in (n for n in SAMPLERS if "VMF" in n or "Rank" in n):
        sampler = filled_sampler(name, storage)
        with tempfile.TemporaryDirectory() as folder:
            marks = [time.perf_counter()]
            for action in (
                sampler.state_dict,
                lambda sampler=sampler: sampler.dumps(folder),
                lambda sampler=sampler: (sampler.loads(folder), sampler.sample(storage, BATCH)),
            ):
                action()
                marks.append(time.perf_counter())
        results[name] = [b - a for a, b in itertools.pairwise(marks)]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [int(size) for size in arguments.sizes]
    if arguments.memory:
        print(measure_memory(arguments.memory, sizes[0]))
        return

    typical: dict[str, dict[int, float]] = {name: {} for name in SAMPLERS}
    dose: dict[int, float] = {}
    print(f"sample + update of {BATCH} transitions, one thread, torch {torch.__version__}\n")
    print("| sampler | transitions | µs | of PrioritizedSampler | memory (MiB) |")
    print("|---|---|---|---|---|")
    for size in sizes:
        times = time_cycles(size, arguments.turns)
        pairs = zip(times["VMFSampler power 8"], times["VMFSampler uncertainty"], strict=True)
        dose[size] = median(a / b for a, b in pairs)
        for name, seconds in times.items():
            ratios = [a / b for a, b in zip(seconds, times[PEER], strict=False)]
            typical[name][size] = median(seconds)
            print(
                f"| {name} | {size:.0e} | {median(seconds) * 1e6:,.0f} "
                f"| {median(ratios):.2f} | {memory_of(name, size)} |"
            )

    print("\n| sampler, 1e+06 transitions | state_dict | dumps | loads + first sample |")
    print("|---|---|---|---|")
    for name, seconds in time_persistence(10**6).items():
        print(f"| {name} | " + " | ".join(f"{second:.2f} s" for second in seconds) + " |")

    print()
    for size, ratio in dose.items():
        print(f"VMFSampler power 8: {ratio:.2f} times the cost of power 1 at {size:.0e} slots.")
    if {10**4, 10**6} <= set(sizes):
        for name in ("VMFSampler uncertainty", "VMFSampler rank"):
            growth = typical[name][10**6] / typical[name][10**4]
            print(f"{name}: {growth:.2f} times the cost from 1e4 to 1e6 transitions.")
        gain = typical[SORTING][10**6] / typical["VMFSampler rank"][10**6]
        print(f"VMFSampler rank: {gain:.0f} times less than {SORTING} at 1e6 transitions.")


if __name__ == "__main__":
    main()
