"""Cost of hindsight sampling, by buffer and size, and of resampling from candidates.

One transition is written before each sample, as in training. Both buffers hold the same data
and take turns in one process on one thread, so that the noise of the machine affects both
alike; ratios are taken within a turn, and the median over the turns is reported.

    python benchmarks/hindsight.py                # 10⁴ to 10⁶ transitions, about a minute
    python benchmarks/hindsight.py --sizes 1e4
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import HERReplayBuffer, LazyTensorStorage

from torchrl_vmfer import CandidatePool, HindsightReplayBuffer, VMFSampler

BATCH = 256
EPISODE = 50
# The sizes of FetchPush.
OBSERVATION, GOAL, ACTION = 25, 3, 4
ACTOR_KEYS = ["observation", "desired_goal"]
PEER = "torchrl HERReplayBuffer"
OURS = "HindsightReplayBuffer"


def reward(achieved: Tensor, desired: Tensor) -> Tensor:
    return -((achieved - desired).norm(dim=-1, keepdim=True) > 0.05).float()


def peer_reward(batch: TensorDictBase) -> Tensor:
    return reward(batch["next", "achieved_goal"], batch["desired_goal"])


def transitions(start: int, count: int) -> TensorDict:
    """Steps ``start`` to ``start + count`` of one environment."""

    def state() -> dict[str, Tensor]:
        return {
            "observation": torch.randn(count, OBSERVATION),
            "achieved_goal": torch.randn(count, GOAL),
            "desired_goal": torch.randn(count, GOAL),
        }

    number = torch.arange(start, start + count)
    done = (number % EPISODE == EPISODE - 1).unsqueeze(-1)
    terminated = torch.zeros_like(done)
    after = {"reward": -torch.ones(count, 1), "done": done, "truncated": done}
    data = {
        **state(),
        "action": torch.rand(count, ACTION) * 2 - 1,
        "collector": {"traj_ids": number // EPISODE},
        "next": {**state(), **after, "terminated": terminated},
    }
    return TensorDict(data, [count])


def make(name: str, size: int) -> Any:
    storage = LazyTensorStorage(size)
    if name == OURS:
        return HindsightReplayBuffer(storage=storage, batch_size=BATCH, reward_fn=reward)
    return HERReplayBuffer(
        peer_reward,
        storage=storage,
        batch_size=BATCH,
        achieved_goal_key=("next", "achieved_goal"),
    )


def fill(buffers: dict[str, Any], size: int) -> None:
    for start in range(0, size, 10_000):
        rows = transitions(start, min(10_000, size - start))
        for buffer in buffers.values():
            buffer.extend(rows.clone())


def seconds_per_cycle(buffer: Any, rows: list[TensorDictBase], act: Callable[[], Any]) -> float:
    """Mean time of one write and one sample."""
    start = time.perf_counter()
    for row in rows:
        buffer.extend(row)
        act()
    return (time.perf_counter() - start) / len(rows)


def time_buffers(size: int, turns: int, cycles: int) -> tuple[dict[str, list[float]], Any]:
    """Seconds per cycle, turn by turn, in full buffers; and one of the buffers."""
    buffers = {name: make(name, size) for name in (PEER, OURS)}
    fill(buffers, size)
    times: dict[str, list[float]] = {name: [] for name in buffers}
    for turn in range(-1, turns):  # the first turn warms up
        rows = transitions(size + turn * cycles, cycles)
        for name, buffer in buffers.items():
            # TorchRL's buffer cannot take more than one row at a time once it is full.
            single = [row.clone() for row in rows.split(1)]
            seconds = seconds_per_cycle(buffer, single, buffer.sample)
            if turn >= 0:
                times[name].append(seconds)
    return times, buffers[OURS]


def first_factors(batch: TensorDictBase) -> Tensor:
    """Stands for the networks, which cost far more than reading the candidates."""
    return batch["observation"][:, 0].abs() + 1


def sample_by(buffer: HindsightReplayBuffer, sampler: VMFSampler) -> Any:
    """Draws the actor's batch with another sampler than the buffer's."""
    return buffer.draw_with(sampler.sample, BATCH, ACTOR_KEYS)


def time_actor_batches(buffer: Any, turns: int, cycles: int) -> dict[str, float]:
    """Median seconds of drawing the actor's batch in each of the paper's ways, after a write."""
    ways: dict[str, Callable[[], Any]] = {
        "sample_actor": partial(buffer.sample_actor, keys=ACTOR_KEYS)
    }
    modes: list[Literal["uncertainty", "rank"]] = ["uncertainty", "rank"]
    for size, mode in itertools.product((2**11, 2**16), modes):
        sampler = VMFSampler(mode, pool_size=size)
        sampler.generator = buffer.generator
        name = f"stored factors of {size} candidates, {mode}"
        ways[name] = partial(sample_by, buffer, sampler)
    for size in (256, 2560, 12800):
        pool = CandidatePool(buffer, size, "rank", first_factors)
        name = f"{size} candidates read, without the networks"
        ways[name] = partial(pool.sample, keys=ACTOR_KEYS)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, turns):
        rows = list(transitions(turn * cycles, cycles).split(1))
        for name, act in ways.items():
            seconds = seconds_per_cycle(buffer, rows, act)
            if turn >= 0:
                times[name].append(seconds)
    return {name: median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 1e5, 1e6])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cycles", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    print(f"a write and a sample of {BATCH}, one thread, torch {torch.__version__}\n")
    print(f"| transitions | {PEER} (ms) | {OURS} (ms) | ratio |")
    print("|---|---|---|---|")
    for size in map(int, arguments.sizes):
        times, buffer = time_buffers(size, arguments.turns, arguments.cycles)
        ratio = median(ours / peer for peer, ours in zip(times[PEER], times[OURS], strict=True))
        peer, ours = (median(times[name]) * 1e3 for name in (PEER, OURS))
        print(f"| {size:.0e} | {peer:.2f} | {ours:.2f} | {ratio:.2f} |")

    print(f"\n| the actor's batch of {BATCH}, {size:.0e} transitions | with a write (ms) |")
    print("|---|---|")
    for name, seconds in time_actor_batches(buffer, arguments.turns, 10).items():
        print(f"| {name} | {seconds * 1e3:.2f} |")


if __name__ == "__main__":
    main()
