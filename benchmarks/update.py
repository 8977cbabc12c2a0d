"""Cost of one update of the critics and of one of the actor, by loss and size of the ensemble.

An update is the loss, the backward pass and Adam's step, for 256 transitions of HalfCheetah-v4, on
one thread. Actors have 256×256 units, and so do critics unless the table says otherwise. All
contenders take turns in one process; ratios are taken within a turn.

TorchRL's REDQ loss does not separate the critic loss from the actor loss. It updates both with
`forward`, one backward pass and two optimizer steps, so only "both" can be compared. CrossQ's
critics have batch renormalization, also with TorchRL's loss.

    python benchmarks/update.py
    python benchmarks/update.py --algorithms TD3 REDQ --critics 2 5 10 --rounds 200
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.optim import Adam
from torchrl import objectives, torchrl_logger
from torchrl.objectives import LossModule

import torchrl_vmfer
from torchrl_vmfer import CompiledUpdates
from torchrl_vmfer.networks import NetworkSpec
from vmfer_recipes.agent.networks import deterministic_actor, gaussian_actor, make_critics
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment

BATCH = 256
NETWORKS = NetworkSpec(hidden=[256, 256])
PEER = "TorchRL"
# By name: whether it is TorchRL's own class, and the options of ours.
LOSSES: dict[str, dict[str, bool] | None] = {
    PEER: None,
    "ours, TorchRL's path, with factors": {},
    "ours, compiled": {"is_compiled": True, "measure": False},
    "ours, compiled, with factors": {"is_compiled": True},
}
PARTS = ("critics", "actor", "both")
Updates = dict[str, Callable[[], None]]


@dataclass(frozen=True)
class Case:
    """An algorithm with its networks.

    Attributes:
        algorithm: its name.
        loss: the name of TorchRL's loss.
        critic_losses: the methods whose sum is the loss of the critics.
        critics: the sizes of the ensemble; a single one if the loss supports no other.
        networks: the networks of the critics.
        outputs: the outputs of a critic.
        options: further arguments of both losses.
        is_served: whether compiled updates serve our loss.
    """

    algorithm: str
    loss: str
    critic_losses: tuple[str, ...] = ("qvalue_loss",)
    critics: tuple[int, ...] = (2,)
    networks: NetworkSpec = NETWORKS
    outputs: int = 1
    options: dict[str, Any] = field(default_factory=lambda: {"loss_function": "l2"})
    is_served: bool = True

    @property
    def title(self) -> str:
        """The name, with the size of the critics if they are not the usual ones."""
        hidden = self.networks.hidden
        size = "×".join(map(str, hidden))
        return self.algorithm if hidden == NETWORKS.hidden else f"{self.algorithm}, {size}"

    @property
    def contenders(self) -> dict[str, dict[str, bool] | None]:
        """The contenders, by name."""
        return {
            name: options
            for name, options in LOSSES.items()
            if self.is_served or "is_compiled" not in (options or {})
        }


def crossq(width: int) -> Case:
    """CrossQ with wide critics."""
    networks = NetworkSpec(hidden=[width, width], batch_renorm=True)
    return Case("CrossQ", "CrossQLoss", networks=networks, is_served=False)


CASES = [
    Case("TD3", "TD3Loss", ("value_loss",), (2, 10)),
    Case("SAC", "SACLoss", ("qvalue_v2_loss",), (2, 10)),
    Case("REDQ", "REDQLoss", critics=(5, 10)),
    Case(
        "TQC",
        "TQCLoss",
        ("qvalue_v2_loss",),
        (5,),
        NetworkSpec(hidden=[512, 512, 512]),
        outputs=25,
        options={},
    ),
    crossq(256),
    crossq(2048),
    Case("TD3+BC", "TD3BCLoss", options={"loss_function": "l2", "alpha": 2.5}),
    Case("CQL", "CQLLoss", ("q_loss", "cql_loss"), is_served=False),
]


def make_loss(case: Case, critics: int, own: dict[str, bool] | None) -> tuple[LossModule, Any]:
    """Makes our loss with some options, or TorchRL's for ``None``, and a batch."""
    torch.manual_seed(0)
    env = make_environment(EnvConfig("HalfCheetah-v4"), 0)
    make_actor = deterministic_actor if case.algorithm.startswith("TD3") else gaussian_actor
    options = {"action_spec": env.action_spec, **case.options}
    if case.loss != "CQLLoss":  # has two
        options["num_qvalue_nets"] = critics
    loss_class = getattr(objectives, case.loss)
    if own is not None:
        loss_class, options = getattr(torchrl_vmfer, f"VMF{case.loss}"), options | own
    loss = loss_class(
        make_actor(env, NETWORKS),
        make_critics(env, case.networks, critics, case.outputs),
        **options,
    )
    loss.make_value_estimator(gamma=0.99)
    rows = env.rollout(BATCH).select("observation", "action", "next")
    return loss, TensorDict({key: rows[key] for key in rows.keys()}, [BATCH])  # noqa: SIM118


def descend(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """Takes one step with each optimizer."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def make_updates(case: Case, critics: int, own: dict[str, bool] | None) -> Updates:
    """Makes the updates of one contender, by name."""
    own = None if own is None else dict(own)
    is_compiled = own is not None and own.pop("is_compiled", False)
    loss, batch = make_loss(case, critics, own)
    of_critics = Adam(list(loss.qvalue_network_params.parameters()), fused=True)
    of_actor = Adam(list(loss.actor_network_params.parameters()), fused=True)

    if is_compiled:
        compiled = CompiledUpdates(loss, critic_optimizer=of_critics, actor_optimizer=of_actor)
        return {
            "critics": lambda: _ignored(compiled.update_critics(batch)),
            "actor": lambda: _ignored(compiled.update_actor(batch)),
        }

    def update_both() -> None:
        found = loss(batch.copy())
        descend(found["loss_qvalue"] + found["loss_actor"], of_critics, of_actor)

    def update_critics() -> None:
        drawn = batch.copy()
        losses = [getattr(loss, name)(drawn)[0] for name in case.critic_losses]
        descend(losses[0] if len(losses) == 1 else torch.stack(losses).sum(), of_critics)

    def update_actor() -> None:
        descend(loss.actor_loss(batch.copy())[0], of_actor)

    if not hasattr(loss, "actor_loss"):
        return {"both": update_both}
    return {"critics": update_critics, "actor": update_actor}


def _ignored(result: Any) -> None:
    """Ignores the result of an update."""


def measure(case: Case, critics: int, rounds: int) -> dict[str, dict[str, np.ndarray]]:
    """Measures the seconds of each update, by contender and part."""
    updates = {name: make_updates(case, critics, own) for name, own in case.contenders.items()}
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
    results = {
        name: {part: np.array(values) for part, values in parts.items()}
        for name, parts in seconds.items()
    }
    return {
        name: {"both": sum(parts.values(), np.zeros(rounds))} | parts
        for name, parts in results.items()
    }


def row(cells: Iterable[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(dict.fromkeys(case.algorithm for case in CASES))
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    parser.add_argument("--critics", nargs="+", type=int, help="for all algorithms but CQL")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    header = ["algorithm", "critics", "loss"]
    for part in PARTS:
        header += [f"{part} ms", f"/ {PEER}"]
    print(row(header) + "\n|---|---:|---" + "|---:" * 2 * len(PARTS) + "|")
    for case in CASES:
        if case.algorithm not in options.algorithms:
            continue
        is_fixed = case.loss == "CQLLoss"
        for critics in case.critics if is_fixed else options.critics or case.critics:
            results = measure(case, critics, options.rounds)
            for name, parts in results.items():
                cells = [case.title, str(critics), name]
                for part in PARTS:
                    cells += ["", ""]
                    if part in parts:
                        cells[-2] = f"{np.median(parts[part]) * 1e3:.2f}"
                    if part in results[PEER]:
                        cells[-1] = f"{np.median(parts[part] / results[PEER][part]):.2f}"
                print(row(cells), flush=True)


if __name__ == "__main__":
    main()
