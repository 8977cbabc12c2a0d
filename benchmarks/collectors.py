"""Frames per second of a whole TD3 run, by collector, and of collection alone, by num_envs.

One run after the other, in this process; a frame is collected, stored and learned from. The
workers' processes are additional to the learner's, so that a machine needs a core for each.

    python benchmarks/collectors.py --frames 3000
    python benchmarks/collectors.py --kinds single processes --workers 1 2

With --sleep, a simulator that sleeps for so many milliseconds in every step, with one update per 16
frames, beside the ideal (workers divided by the time of a step) and Stable-Baselines3's TD3 with
SubprocVecEnv. Every cell is measured for --seconds, from the time on at which all workers collect.
Sleeping takes no processor time: with long steps, the table hardly depends on the number of cores.
The whole table takes about 12 minutes on two idle cores, mostly for starting workers.

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
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


class TimedSession:
    """Takes steps of a run for some seconds, and writes nothing.

    It measures between arrivals of chunks, because frames arrive many at a time.

    Attributes:
        marks: times and numbers of steps since all workers collect.
    """

    def __init__(self, seconds: float) -> None:
        from vmfer_recipes.run.session import Averages

        self.metrics = Averages()
        self._seconds = seconds
        self.marks: list[tuple[float, int]] = []

    def steps(self, policy: Any, collector: Any, **components: Any) -> Iterator[int]:
        frames = 0
        try:
            for step in itertools.count(1):
                yield step
                if step % 1000 == 0:
                    self.metrics.pop()  # the next step measures the diagnostics of a row
                # Every worker has returned a chunk and collects another one.
                if min(collector._numbers) < 2 or collector._frames == frames:
                    continue
                frames = collector._frames
                self.marks.append((time.perf_counter(), step))
                if self.marks[-1][0] > self.marks[0][0] + self._seconds:
                    return
        finally:
            collector.close()


def workers_speed(kind: str, milliseconds: float, count: int, seconds: float) -> float:
    """Frames per second of a TD3 run with workers."""
    recipe = importlib.import_module("vmfer_recipes.td3")
    session = TimedSession(seconds)
    cfg = _config(
        f"collector={kind}",
        f"collector.num_workers={count}",
        "utd_ratio=1/16",
        "env.name=sleeping:Sleeping-v0",
        f"+env.kwargs.milliseconds={milliseconds}",
        f"init_random_frames={16 * count}",
        "total_frames=1000000000",
    )
    recipe.train(cfg, session, recipe.make_agent(cfg))
    (start, first), (end, last) = session.marks[0], session.marks[-1]
    return (last - first) / (end - start)


def subprocess_speed(milliseconds: float, count: int, seconds: float) -> float:
    """Frames per second of Stable-Baselines3's TD3."""
    from functools import partial

    import torch
    from sleeping import Sleeping
    from stable_baselines3 import TD3
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(1)
    marks: list[tuple[float, int]] = []

    def note(known: dict[str, Any], _: Any) -> bool:
        if known["self"].num_timesteps > 16 * count:  # the first ones are random
            marks.append((time.perf_counter(), known["self"].num_timesteps))
        return not marks or marks[-1][0] < marks[0][0] + seconds

    env = SubprocVecEnv([partial(Sleeping, milliseconds)] * count)
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
    model.learn(1_000_000_000, callback=note)
    env.close()
    (start, first), (end, last) = marks[0], marks[-1]
    return (last - first) / (end - start)


def compare_sleeping(
    kinds: list[str], sleeps: list[float], workers: list[int], seconds: float
) -> None:
    """Prints the table of ``--sleep``."""
    names = [f"`{kind}`" for kind in kinds]
    print(f"| a step takes | workers | ideal | {' | '.join(names)} | SubprocVecEnv |")
    print("|---:|" + "---:|" * (len(kinds) + 3))
    for sleep, count in itertools.product(sleeps, workers):
        ideal = 1000 * count / sleep
        speeds = [workers_speed(kind, sleep, count, seconds) for kind in kinds]
        speeds.append(subprocess_speed(sleep, count, seconds))
        shown = " | ".join(f"{speed:.0f} ({speed / ideal:.2f})" for speed in speeds)
        print(f"| {sleep:g} ms | {count} | {ideal:.0f} | {shown} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--frames", type=int, default=3000, help="per run")
    parser.add_argument("--kinds", nargs="+", default=["single", "processes"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--envs", nargs="+", type=int, help="compare numbers of environments")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of --envs")
    parser.add_argument("--sleep", nargs="+", type=float, help="milliseconds of a step")
    parser.add_argument("--seconds", type=float, default=8, help="of a cell with --sleep")
    arguments = parser.parse_args()
    if arguments.envs:
        compare_environments(arguments.env, arguments.envs, arguments.rounds, arguments.frames)
        return
    if arguments.sleep:
        kinds = [kind for kind in arguments.kinds if kind != "single"]
        compare_sleeping(kinds, arguments.sleep, arguments.workers, arguments.seconds)
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
