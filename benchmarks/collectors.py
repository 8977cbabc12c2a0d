"""Frames per second of a whole TD3 run, by collector.

One run after the other, in this process; a frame is collected, stored and learned from. The
workers' processes are additional to the learner's, so that a machine needs a core for each.

    python benchmarks/collectors.py --frames 3000
    python benchmarks/collectors.py --kinds single multi_async --workers 1 2
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import statistics
import tempfile
from pathlib import Path


def speed(frames: int, *overrides: str) -> float:
    """The median over the rows of ``train.csv``, but for the first, in which the run warms up."""
    from hydra import compose, initialize_config_module

    from vmfer_recipes.training.options import to_config

    with tempfile.TemporaryDirectory() as folder:
        with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
            cfg = compose(
                "td3",
                [
                    f"run_dir={folder}/run",
                    f"total_frames={frames}",
                    f"init_random_frames={frames // 10}",
                    f"log_interval={frames // 10}",
                    f"eval_interval={frames}",
                    "num_eval_episodes=1",
                    "replay.buffer_size=100000",
                    *overrides,
                ],
            )
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("vmfer_recipes.td3").main.__wrapped__(to_config(cfg))
        with (Path(folder) / "run" / "train.csv").open() as file:
            rows = list(csv.DictReader(file))
    return statistics.median(float(row["steps_per_second"]) for row in rows[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--frames", type=int, default=3000, help="per run")
    parser.add_argument("--kinds", nargs="+", default=["single", "multi_sync", "multi_async"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    arguments = parser.parse_args()
    print("|  | workers | frames/s |\n|---|---:|---:|")
    for kind in arguments.kinds:
        for count in [None] if kind == "single" else arguments.workers:
            overrides = [f"env={arguments.env}", f"collector={kind}"]
            if count is not None:
                overrides.append(f"collector.num_workers={count}")
            result = speed(arguments.frames, *overrides)
            print(f"| `collector={kind}` | {count or ''} | {result:.0f} |", flush=True)


if __name__ == "__main__":
    main()
