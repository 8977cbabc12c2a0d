"""Compares two checkouts of this project byte for byte: the gate of a rebuild.

python tests/golden.py ../before . [--only her]

Each checkout needs its own ``.venv``. Both train the same short runs, each killed once and resumed;
then every tensor of the policy and of the last checkpoint, the tables, the help, the composed
configurations and the error lines are compared. Bits differ between processors, so two checkouts
are compared on one machine, not stored hashes.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

SHORT = (
    *("total_frames=420", "eval_interval=150", "num_eval_episodes=1", "log_interval=50"),
    *("checkpoint_interval=60", "hidden=[16,16]", "batch_size=16", "seed=3"),
)
FETCH = ("env=FetchReach-v4", "replay=her")
SAMPLERS = ("uniform", "fresh", "vmf_uncertainty", "vmf_rank")
RUNS: dict[str, tuple[str, ...]] = {
    f"{recipe}-{sampler}-{fast}": (recipe, f"sampler={sampler}", f"fast={fast}")
    for recipe in ("td3", "sac")
    for sampler in SAMPLERS
    for fast in ("true", "false")
} | {
    "per": ("td3", "replay=per"),
    "per_rank": ("sac", "replay=per_rank", "sampler=vmf_rank"),
    "lap": ("td3", "replay=lap", "sampler=inverse_td"),
    "her": ("sac", *FETCH, "sampler=vmf_rank"),
    "her-final": ("td3", *FETCH, "replay.strategy=final"),
    "her-episode": ("td3", *FETCH, "replay.strategy=episode", "sampler=vmf_uncertainty"),
    "redq": ("redq", "num_critics=4", "utd_ratio=2"),
    "tqc": ("tqc", "sampler=vmf_power"),
    "crossq": ("crossq",),
    "five-critics": ("td3", "num_critics=5", "sampler=vmf_pool"),
    "td3_bc": ("td3_bc",),
}
DATA = ("td3", "sampler=fresh", "keep_checkpoint=true")  # its replay is the dataset of td3_bc
SCRIPTS = ("td3", "sac", "redq", "tqc", "crossq", "td3_bc", "evaluate", "export", "fork")
SCRIPTS += ("report", "status", "shooting")
MISTAKES = (
    ("td3", "env=Nowhere-v0"),
    ("td3", "gama=0.9"),
    ("td3", "gamma=2"),
    ("td3", "sampler=vmf_rnak"),
    ("td3", "sampler=vmf_rank", "sampler.power=x"),
    ("sac", "replay=per", "replay.alpha=-1"),
    ("td3", "env.name=CartPole-v1"),
    ("td3_bc", "dataset=nowhere"),
    ("evaluate", "run=nowhere"),
)


class Checkout:
    """One of the two checkouts.

    Args:
        root: its folder.
        work: the folder for its runs.
    """

    def __init__(self, root: Path, work: Path) -> None:
        self._root = root.resolve()
        self.work = work
        work.mkdir(parents=True, exist_ok=True)

    def start(self, recipe: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a recipe."""
        command = [self._root / ".venv/bin/python", self._root / f"recipes/{recipe}.py", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.work, env=environment, stdout=pipe, stderr=pipe, text=True
        )

    def text(self, recipe: str, *arguments: str) -> dict[str, int]:
        """The lines that a command prints, with their number; its exit code is one of them."""
        process = self.start(recipe, *arguments)
        printed = "".join(process.communicate()).replace(str(self._root), "ROOT")
        lines = printed.replace(str(self.work), "WORK").splitlines()
        return Counter([*lines, f"exit code {process.returncode}"])

    def train(self, name: str, recipe: str, *arguments: str) -> dict[str, Any]:
        """Trains, kills the run after its first checkpoint, resumes it. Returns what it wrote."""
        folder = self.work / name
        is_offline = recipe == "td3_bc"
        data = f"dataset={self.work / 'data'}" if is_offline else "init_random_frames=100"
        env = [] if any(word.startswith("env") for word in arguments) else ["env=Hopper-v4"]
        command = (recipe, *env, *SHORT, *arguments, data, f"run_dir={folder}")
        process = self.start(*command)
        while process.poll() is None and not list(folder.glob("checkpoint/step_*.pt")):
            time.sleep(0.005)
        process.kill()
        process.communicate()
        process = self.start(*command)
        _, errors = process.communicate()
        if process.returncode or not (folder / "finished").exists():
            return {"failed": errors}
        found: dict[str, Any] = {"killed in time": "Resuming" in errors}
        for file in (folder / "policy.pt", *folder.glob("checkpoint/step_*.pt")):
            found |= flat(contents(file), file.name)
        for file in (folder / "eval.csv", folder / "train.csv"):
            for number, row in enumerate(csv.DictReader(file.open())):
                row.pop("steps_per_second", None)
                found[f"{file.name}:{number}"] = row
        dataset = next((name for name in found if name.endswith("run/dataset")), "")
        found.pop(dataset, None)  # the path of the folder of this checkout
        return found


def contents(file: Path) -> Any:
    """What a file holds; for a checkpoint, with its transitions, which are in segments."""
    state = torch.load(file, weights_only=True)
    folder = file.parent / "segments"
    for number, name in enumerate(state.pop("segments", [])):
        state[f"segment {number}"] = torch.load(folder / name, weights_only=True)
    return state


def flat(value: Any, name: str) -> dict[str, Any]:
    """The leaves of nested containers, by path."""
    if isinstance(value, dict):
        items = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)) and len(value) < 1000:
        items = [(str(key), part) for key, part in enumerate(value)]
    else:
        return {name: value}
    return {key: leaf for k, part in items for key, leaf in flat(part, f"{name}/{k}").items()}


def same(one: Any, other: Any) -> bool:
    """Whether two leaves have the same bits."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        # Not `torch.equal`: NaN equals NaN here, and 0.0 differs from -0.0.
        return one.numpy().tobytes() == other.numpy().tobytes()
    return type(one) is type(other) and repr(one) == repr(other)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of leaves that differ, and then of those that occur only once."""
    missing = object()
    names = sorted(before.keys() & after.keys()) + sorted(before.keys() ^ after.keys())
    return [name for name in names if not same(before.get(name, missing), after.get(name, missing))]


def main() -> int:
    """Compares. Returns the number of runs and outputs that differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="a regular expression of names")
    options = parser.parse_args()
    failed = compared = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        sides = [
            Checkout(options.before, Path(folder) / "before"),
            Checkout(options.after, Path(folder) / "after"),
        ]
        jobs: dict[str, Any] = {f"help {s}": ("text", s, "--help") for s in SCRIPTS}
        jobs |= {f"cfg {s}": ("text", s, "--cfg", "job") for s in SCRIPTS[:6]}
        jobs |= {f"error {' '.join(words)}": ("text", *words) for words in MISTAKES}
        jobs |= {"run data": ("train", "data", *DATA)}
        jobs |= {f"run {name}": ("train", name, *words) for name, words in RUNS.items()}
        for name, (method, *words) in jobs.items():
            if name != "run data" and not re.search(options.only, name):
                continue
            results = list(pool.map(lambda side, m=method, w=words: getattr(side, m)(*w), sides))
            before, after = results
            found = differences(before, after)
            compared += 1
            failed += bool(found) or "failed" in after
            print(f"{name}: {len(found)} of {len(after)} values differ", flush=True)
            for key in found[:6]:
                print(f"    {key}: {str(before.get(key))[:200]} | {str(after.get(key))[:200]}")
    print(f"{compared - failed} of {compared} are the same.")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main()))
