"""Cost of one update of the critics and of one of the actor, by loss and size of the ensemble.

An update is loss, backward pass and Adam, on a batch of 256 of HalfCheetah-v4 with 256×256
networks and one thread. All take turns in one process; ratios are taken within a turn.

    python benchmarks/update.py
    python benchmarks/update.py --critics 2 5 10 --rounds 200
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from tensordict import TensorDict
from torchrl import torchrl_logger
from torchrl.objectives import LossModule, SACLoss, TD3Loss

from torchrl_vmfer import VMFSACLoss, VMFTD3Loss
from torchrl_vmfer.fast import backward
from torchrl_vmfer.networks import NetworkSpec
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.group_options import EnvConfig
from vmfer_recipes.training.networks import deterministic_actor, gaussian_actor, make_critics

BATCH = 256
NETWORKS = NetworkSpec(hidden=[256, 256])
PEER = "TorchRL"
# By name: whether it is TorchRL's own class, and the options of ours.
LOSSES = {
    PEER: None,
    "ours, TorchRL's path, with factors": {},
    "ours, fast": {"fast": True, "measure": False},
    "ours, fast, with factors": {"fast": True},
}


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


def make_updates(
    algorithm: str, critics: int, options: dict | None
) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    env = make_environment(EnvConfig("HalfCheetah-v4"), 0)
    actor = (deterministic_actor if algorithm == "td3" else gaussian_actor)(env, NETWORKS)
    stock, ours = {"td3": (TD3Loss, VMFTD3Loss), "sac": (SACLoss, VMFSACLoss)}[algorithm]
    loss: LossModule = (stock if options is None else ours)(
        actor,
        make_critics(env, NETWORKS, critics),
        num_qvalue_nets=critics,
        action_spec=env.action_spec,
        loss_function="l2",
        **(options or {}),
    )
    loss.make_value_estimator(gamma=0.99)
    rows = env.rollout(BATCH).select("observation", "action", "next")
    batch = TensorDict({key: rows[key] for key in rows.keys()}, [BATCH])  # noqa: SIM118
    optimizers = {
        name: torch.optim.Adam(list(getattr(loss, name).flatten_keys().values()), fused=True)
        for name in ("qvalue_network_params", "actor_network_params")
    }
    critic_loss = loss.value_loss if algorithm == "td3" else loss.qvalue_v2_loss
    return {
        "critics": lambda: descend(
            optimizers["qvalue_network_params"], critic_loss(batch.copy())[0]
        ),
        "actor": lambda: descend(
            optimizers["actor_network_params"], loss.actor_loss(batch.copy())[0]
        ),
    }


def measure(algorithm: str, critics: int, rounds: int) -> dict[str, dict[str, np.ndarray]]:
    updates = {name: make_updates(algorithm, critics, options) for name, options in LOSSES.items()}
    seconds: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in parts} for name, parts in updates.items()
    }
    for turn in range(rounds + 3):
        for name, parts in updates.items():
            for part, update in parts.items():
                start = time.perf_counter()
                update()
                if turn >= 3:  # the first are for warming up
                    seconds[name][part].append(time.perf_counter() - start)
    return {
        name: {part: np.array(values) for part, values in parts.items()}
        for name, parts in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--critics", nargs="+", type=int, default=[2, 10])
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    header = ["algorithm", "critics", "loss", "critics ms", "/ TorchRL", "actor ms", "/ TorchRL"]
    print("| " + " | ".join(header) + " |\n|---|---:|---" + "|---:" * 4 + "|")
    for algorithm in ("td3", "sac"):
        for critics in options.critics:
            results = measure(algorithm, critics, options.rounds)
            for name, parts in results.items():
                cells = [algorithm.upper(), str(critics), name]
                for part, seconds in parts.items():
                    ratio = np.median(seconds / results[PEER][part])
                    cells += [f"{np.median(seconds) * 1e3:.2f}", f"{ratio:.2f}"]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
