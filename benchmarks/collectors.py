"""Frames per second of a whole TD3 run, by collector, and of collection alone, by num_envs.

One run after the other, in this process; a frame is collected, stored and learned from. The
workers' processes are additional to the learner's, so that a machine needs a core for each.

    python benchmarks/collectors.py --frames 3000
    python benchmarks/collectors.py --kinds single processes --workers 1 2

With --sleep, a simulator that sleeps for so many milliseconds in every step, with one update per 16
frames, beside the ideal (workers divided by the time of a step) and Stable-Baselines3's TD3 with
SubprocVecEnv. Every cell is measured for --seconds, from the time on at which all workers collect.
Sleeping takes no processor time: with long steps, the table hardly depends on the number of cores.
Workers are started once for all steps. After --minutes, the rest of the table is left out.

    pip install -e '.[bench]'
    python benchmarks/collectors.py --sleep 5 25 100 --workers 1 4 16 32

With --envs, several environments in one process. The first table steps them without learning: as
num_envs= does, with TorchRL's SerialEnv and with Gymnasium's SyncVectorEnv, all with the same
policy. Speeds are frames per second of CPU time, medians of --rounds alternating measurements, so
that other load on the machine affects all alike. The second table is a whole TD3 run.

    python benchmarks/collectors.py --envs 1 2 4 8 16
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import itertools
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np


def _config(*overrides: str) -> Any:
    from hydra import compose, initialize_config_module

    import vmfer_recipes.config.algorithms  # noqa: F401  # registers their configurations
    from vmfer_recipes.config.training import to_config

    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return to_config(compose("td3", ["replay.buffer_size=100000", *overrides]))


def speed(frames: int, *overrides: str) -> float:
    """The mean over the rows of ``train.csv``, except the first, which includes the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        cfg = _config(
            f"run_dir={folder}/run",
            f"total_frames={frames}",
            f"init_random_frames={frames // 10}",
            f"log_interval={frames // 10}",
            f"eval_interval={frames}",
            "num_eval_episodes=1",
            *overrides,
        )
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("vmfer_recipes.td3").main.__wrapped__(cfg)
        with (Path(folder) / "run" / "train.csv").open() as file:
            rows = list(csv.DictReader(file))
    return statistics.harmonic_mean(float(row["steps_per_second"]) for row in rows[1:])


def stepping(env_name: str, count: int, rounds: int) -> dict[str, float]:
    """Frames per second of ``count`` environments with one policy, without learning."""
    import gymnasium as gym
    import torch
    from tensordict import TensorDict
    from torchrl.collectors import Collector
    from torchrl.envs import SerialEnv

    from vmfer_recipes.agent.networks import deterministic_actor, exploring, network_spec
    from vmfer_recipes.agent.observations import Observations
    from vmfer_recipes.agent.replay import make_replay_buffer
    from vmfer_recipes.collection.collectors import make_collector
    from vmfer_recipes.config.groups import EnvConfig
    from vmfer_recipes.environments.make import make_environment

    torch.set_num_threads(1)
    cfg = _config(f"env={env_name}", f"num_envs={count}", "init_random_frames=0")
    torch.set_flush_denormal(True)
    env = make_environment(EnvConfig(env_name), 0)
    policy = exploring(deterministic_actor(env, network_spec(cfg)), True, 0.1)
    buffer = make_replay_buffer(env, cfg)
    ours = make_collector(env, policy, Observations("cpu"), buffer, cfg)
    serial = SerialEnv(count, lambda: make_environment(EnvConfig(env_name), 0))
    collector = iter(
        Collector(
            serial,
            policy,
            frames_per_batch=count,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
    )
    makers = [lambda: make_environment(EnvConfig(env_name), 0).simulator] * count
    vector = gym.vector.SyncVectorEnv(makers)
    seen = vector.reset(seed=0)[0]

    def step_ours() -> None:
        for _ in range(count):
            ours.collect()

    def step_serial() -> None:
        buffer.extend(next(collector).reshape(-1).select(*stored, strict=True))

    @torch.no_grad()
    def step_vector() -> None:
        nonlocal seen
        now = torch.from_numpy(seen)
        action = policy(TensorDict({"observation": now}, [count]))["action"]
        seen, reward, terminated, truncated, _ = vector.step(action.numpy())
        following = {
            "observation": torch.from_numpy(seen),
            "reward": torch.from_numpy(reward).float().unsqueeze(-1),
            "done": torch.from_numpy(terminated | truncated).unsqueeze(-1),
            "terminated": torch.from_numpy(terminated).unsqueeze(-1),
        }
        data = {"observation": now, "action": action, "next": following}
        buffer.extend(TensorDict(data, [count]))

    step_ours()
    stored = list(buffer.storage[:1].exclude("index").keys(True, True))
    contenders = {"num_envs": step_ours, "SerialEnv": step_serial, "SyncVectorEnv": step_vector}
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            start, repetitions = time.process_time(), max(1, 400 // count)
            for _ in range(repetitions):
                step()
            speeds[name].append(repetitions * count / (time.process_time() - start))
    return {name: statistics.median(values) for name, values in speeds.items()}


def compare_environments(env: str, counts: list[int], rounds: int, frames: int) -> None:
    """Prints the two tables of ``--envs``."""
    print("Collection alone, frames per second of CPU time:\n")
    print("| environments | `num_envs=` | SerialEnv | SyncVectorEnv |\n|---:|---:|---:|---:|")
    for count in counts:
        row = stepping(env, count, rounds)
        print(f"| {count} | {' | '.join(f'{value:.0f}' for value in row.values())} |", flush=True)
    print("\nA whole TD3 run:\n\n|  | frames/s | ratio |\n|---|---:|---:|")
    base = None
    for count in counts:
        result = speed(frames, f"env={env}", f"num_envs={count}")
        base = base or result
        print(f"| `num_envs={count}` | {result:.0f} | {result / base:.2f} |", flush=True)


class Stopwatch:
    """Measures frames per second for several durations of a step, one after the other.

    It starts with the longest, for which the workers are not ahead of the learner.

    Attributes:
        file: the file with the duration, which the simulators read in every step.
        speeds: frames per second, by duration.
    """

    def __init__(self, sleeps: list[float], seconds: float, folder: str) -> None:
        self.file, self.speeds = f"{folder}/milliseconds", dict[float, float]()
        self._left, self._seconds = sorted(sleeps), seconds
        self._value = np.memmap(self.file, np.float64, "w+", shape=(1,))
        self._value[0] = self._left[-1]
        self._begin = (0.0, 0)  # of a measurement: the time and the number of frames
        self._rounds = 32  # steps of every environment after which a measurement begins

    def is_over(self, frames: int, rounds: int) -> bool:
        """Whether nothing is left to measure. To be called whenever frames have arrived."""
        now = time.perf_counter()
        if not self._begin[0]:
            if rounds >= self._rounds:
                self._begin = now, frames
        elif now > self._begin[0] + self._seconds:
            speed = (frames - self._begin[1]) / (now - self._begin[0])
            self.speeds[self._left.pop()] = speed
            self._begin, self._rounds = (0.0, 0), rounds + 32
            self._value[0] = self._left[-1] if self._left else 0
        return not self._left


class TimedSession:
    """Takes the steps of a run that are measured, and writes nothing."""

    def __init__(self, watch: Stopwatch) -> None:
        from vmfer_recipes.run.session import Averages

        self.metrics = Averages()
        self._watch = watch

    def steps(self, policy: Any, collector: Any, **components: Any) -> Iterator[int]:
        frames = 0
        try:
            for step in itertools.count(1):
                yield step
                if step % 1000 == 0:
                    self.metrics.pop()  # the next step measures the diagnostics of a row
                # Frames arrive many at a time, in chunks of 16 steps.
                if collector._frames > frames:
                    frames = collector._frames
                    if self._watch.is_over(step, 16 * min(collector._numbers)):
                        return
        finally:
            collector.close()


def measure_workers(watch: Stopwatch, count: int, kind: str) -> None:
    """Measures a TD3 run with workers."""
    import torch

    from vmfer_recipes.config.launch import quiet_torchrl

    quiet_torchrl()
    torch.set_num_threads(1)  # as in a run; compiled updates require it
    recipe = importlib.import_module("vmfer_recipes.td3")
    cfg = _config(
        f"collector={kind}",
        f"collector.num_workers={count}",
        "utd_ratio=1/16",
        "env.name=sleeping:Sleeping-v0",
        f"+env.kwargs.file={watch.file}",
        f"init_random_frames={16 * count}",
        "total_frames=1000000000",
    )
    recipe.train(cfg, TimedSession(watch), recipe.make_agent(cfg))


def measure_subprocesses(watch: Stopwatch, count: int) -> None:
    """Measures Stable-Baselines3's TD3."""
    import torch
    from sleeping import Sleeping
    from stable_baselines3 import TD3
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(1)

    def continues(known: dict[str, Any], _: Any) -> bool:
        frames = known["self"].num_timesteps
        return not watch.is_over(frames, frames // count)

    env = SubprocVecEnv([partial(Sleeping, watch.file)] * count)
    model = TD3(
        "MlpPolicy",
        env,
        learning_starts=16 * count,
        train_freq=max(1, 16 // count),  # steps of every environment
        gradient_steps=max(1, count // 16),
        policy_kwargs={"net_arch": [256, 256]},
        buffer_size=100_000,
        device="cpu",
    )
    model.learn(1_000_000_000, callback=continues)
    env.close()


def compare_sleeping(
    kinds: list[str], sleeps: list[float], workers: list[int], seconds: float, minutes: float
) -> None:
    """Prints the table of ``--sleep``."""
    from population import processor

    contenders: dict[str, Any] = {
        f"`{kind}`": partial(measure_workers, kind=kind) for kind in kinds if kind != "single"
    }
    contenders["SubprocVecEnv"] = measure_subprocesses
    packages = {"`ray`": "ray", "SubprocVecEnv": "stable_baselines3"}
    for name in {*packages} & {*contenders}:
        if find_spec(packages[name]) is None:
            print(f"{name} is left out: {packages[name]} is not installed.", file=sys.stderr)
            del contenders[name]
    cells: dict[tuple[float, int], dict[str, float]] = defaultdict(dict)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(round(60 * minutes))
    try:
        for count, name in itertools.product(workers, contenders):
            print(f"{name} with {count} workers", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                watch = Stopwatch(sleeps, seconds, folder)
                try:
                    contenders[name](watch, count)
                finally:
                    for sleep, speed in watch.speeds.items():
                        cells[sleep, count][name] = speed
    except KeyboardInterrupt:  # or Ctrl-C
        print(f"The rest is left out (--minutes {minutes:g}).", file=sys.stderr)
    signal.alarm(0)
    print(f"`{shlex.join(['python', *sys.argv])}` on {os.cpu_count()} cores of {processor()}:\n")
    print(f"| a step takes | workers | ideal | {' | '.join(contenders)} |")
    print("|---:|" + "---:|" * (len(contenders) + 2))
    for sleep, count in itertools.product(sleeps, workers):
        ideal, cell = 1000 * count / sleep, cells[sleep, count]
        shown = [f"{cell[n]:.0f} ({cell[n] / ideal:.2f})" if n in cell else "" for n in contenders]
        print(f"| {sleep:g} ms | {count} | {ideal:.0f} | {' | '.join(shown)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--frames", type=int, default=3000, help="per run")
    parser.add_argument("--kinds", nargs="+", default=["single", "processes"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--envs", nargs="+", type=int, help="compare numbers of environments")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of --envs")
    parser.add_argument("--sleep", nargs="+", type=float, help="milliseconds of a step")
    parser.add_argument("--seconds", type=float, default=6, help="of a measurement with --sleep")
    parser.add_argument("--minutes", type=float, default=8, help="limit for the table of --sleep")
    arguments = parser.parse_args()
    if arguments.envs:
        compare_environments(arguments.env, arguments.envs, arguments.rounds, arguments.frames)
        return
    if arguments.sleep:
        given = arguments
        compare_sleeping(given.kinds, given.sleep, given.workers, given.seconds, given.minutes)
        return
    print("|  | workers | frames/s |\n|---|---:|---:|")
    for kind in arguments.kinds:
        for count in [None] if kind == "single" else arguments.workers:
            overrides = [f"env={arguments.env}", f"collector={kind}"]
            if count is not None:
                overrides.append(f"collector.num_workers={count}")
            result = speed(arguments.frames, *overrides)
            print(f"| `{kind}` | {count or ''} | {result:.0f} |", flush=True)


if __name__ == "__main__":
    main()
