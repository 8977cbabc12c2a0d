"""Training speed of the recipes, of Stable-Baselines3, SBX and a loop of TorchRL's parts.

Every contender runs in its own process, on one thread of the same core, and takes some steps in
turn while the others wait; ratios are taken within a round of turns, so that the noise of the
machine affects all of them alike. SBX (Stable-Baselines3 in JAX) has an environment of its own; it
is left out where there is none. XLA's library of matrix products chooses its instructions by itself
and cannot be limited: with ``--module avx2``, a processor with AVX-512 favors SBX.

    pip install -e '.[bench]'
    python -m venv .venv-jax && .venv-jax/bin/pip install '.[bench-jax]'
    python benchmarks/throughput.py       # 10⁶ transitions in the buffers, TD3 and SAC
    python benchmarks/throughput.py --filled 1e6 --algorithms td3 --rounds 30
    python benchmarks/throughput.py --size small        # 64×64 networks, batches of 64
    python benchmarks/throughput.py --module avx2       # ours without AVX-512
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from workload import SIZES

from torchrl_vmfer.compiled.extension import modules

MODULES = ("avx512", "avx2", "portable")
SAMPLERS = ("uniform", "fresh", "vmf_uncertainty", "vmf_rank")
SMALL = 10_000
# How each contender is made, its sampler, and the transitions in its buffer if not --filled.
CONTENDERS: dict[str, tuple[str, str, int | None]] = {
    "Stable-Baselines3": ("sb3", "", None),
    "SBX": ("sbx", "", None),
    "TorchRL's parts": ("torchrl", "", None),
    "TorchRL's parts, a turn's steps at once": ("torchrl at once", "", None),
    "TorchRL's parts, fused Adam, no denormals": ("torchrl tuned", "", None),
    **{f"ours, sampler={sampler}": ("recipe", sampler, None) for sampler in SAMPLERS},
    **{f"ours, sampler={sampler}, 10⁴": ("recipe", sampler, SMALL) for sampler in SAMPLERS},
}
PEERS = ("Stable-Baselines3", "SBX", "TorchRL's parts", "ours, sampler=fresh")  # columns
PARTS = ("collect", "sample", "critic", "actor", "priority", "rest")


@dataclass
class Contender:
    """A training loop in its own process."""

    process: Any
    run: Callable[[int], dict[str, float]]
    rounds: list[dict[str, float]] = field(default_factory=list)

    def seconds(self) -> np.ndarray:
        return np.array([turn["step"] for turn in self.rounds])


def start(
    make: str, algorithm: str, filled: int, sampler: str, options: argparse.Namespace
) -> Contender:
    if make == "sbx":
        return start_sbx(options.jax_python, algorithm, filled, options.size)
    from contenders import serve

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    args = (make, algorithm, filled, options.size, sampler, options.module, theirs)
    process = context.Process(target=serve, args=args, daemon=True)
    process.start()

    def run(steps: int) -> dict[str, float]:
        ours.send(steps)
        return ours.recv()

    return Contender(process, run)


def start_sbx(python: Path, *arguments: Any) -> Contender:
    script = Path(__file__).with_name("sbx_contender.py")
    process = subprocess.Popen(
        [python, script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    def run(steps: int) -> dict[str, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(steps, file=process.stdin, flush=True)
        return {"step": float(process.stdout.readline())}

    return Contender(process, run)


def compare(
    names: list[str], algorithm: str, filled: int, options: argparse.Namespace
) -> dict[str, Contender]:
    contenders = {}
    for name in names:
        make, sampler, own = CONTENDERS[name]
        contenders[name] = start(make, algorithm, own or filled, sampler, options)
    for turn in range(options.rounds + 1):
        # Alternating directions: none always runs right after the same other one.
        for name in list(contenders)[:: 1 if turn % 2 else -1]:
            seconds = contenders[name].run(options.steps)
            if turn:  # the first is for warming up
                contenders[name].rounds.append(seconds)
    for contender in contenders.values():
        contender.process.kill()
    return contenders


def ratio(of: Contender, to: Contender) -> str:
    """Speed of one over the other: median over the rounds, with its 95 % bootstrap interval."""
    ratios = to.seconds() / of.seconds()
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return f"{np.median(ratios):.2f} ({low:.2f}-{high:.2f})"


def table(contenders: dict[str, Contender], steps: int) -> str:
    peers = [name for name in PEERS if name in contenders]
    header = ["", "steps/s", *(f"speed / {peer}" for peer in peers), *PARTS]
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    for name, contender in contenders.items():
        shares = [
            f"{sum(turn[part] for turn in contender.rounds) / contender.seconds().sum():.1%}"
            if contender.rounds[0].get(part)
            else ""
            for part in PARTS
        ]
        cells = [
            name,
            f"{steps / np.median(contender.seconds()):.0f}",
            *(ratio(contender, contenders[peer]) for peer in peers),
            *shares,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def overheads(contenders: dict[str, Contender]) -> Iterator[str]:
    """By how much samplers, and larger buffers, make a step longer."""
    control = contenders.get("ours, sampler=fresh")
    for name, contender in contenders.items():
        if control is not None and "vmf" in name and "10⁴" not in name:
            # The critic update is the same work for all samplers: noise affects it and the rest
            # of a step alike.
            ratio = critic_fraction(control) / critic_fraction(contender) - 1
            yield f"{name}: {ratio:.1%} longer than sampler=fresh, by the critics' fraction"
        small = contenders.get(f"{name}, 10⁴")
        if small is not None:
            ratio = float(np.median(contender.seconds() / small.seconds()))
            yield f"{name}: {ratio:.2f} times as long as with 10⁴ transitions"


def processor() -> str:
    """The model of the processor, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in found.items()}
    family = f"family {names.get('cpu family')}, model {names.get('model')}"
    return f"{names.get('model name', platform.machine())} ({family})"


def critic_fraction(contender: Contender) -> float:
    return sum(turn["critic"] for turn in contender.rounds) / contender.seconds().sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["td3", "sac"])
    parser.add_argument("--size", choices=SIZES, default="large", help="of networks and batches")
    parser.add_argument("--module", choices=MODULES, help="the instruction set of ours")
    parser.add_argument("--filled", nargs="+", type=float, default=[1e6])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--jax-python", type=Path, default=Path(".venv-jax/bin/python"))
    parser.add_argument("--core", type=int, default=0, help="the core that all contenders share")
    options = parser.parse_args()
    names = list(options.contenders)
    if "SBX" in names and not options.jax_python.exists():
        print(f"SBX is left out: there is no {options.jax_python}.", file=sys.stderr)
        names.remove("SBX")
    # For the processes started below. XLA starts no more threads than it may use cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    size, module = SIZES[options.size], options.module or next(iter(modules()), "no extension")
    print(f"{processor()}, {module}, core {options.core}")
    for algorithm in options.algorithms:
        for filled in map(int, options.filled):
            contenders = compare(names, algorithm, filled, options)
            sizes = f"{'×'.join(map(str, size.hidden))}, batch {size.batch}"
            name = f"{algorithm.upper()}, {size.task}, {sizes}"
            print(f"\n{name}, {filled:,} transitions in the buffer\n")
            print(table(contenders, options.steps))
            print(*overheads(contenders), sep="\n", flush=True)


if __name__ == "__main__":
    main()
