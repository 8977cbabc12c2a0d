"""Gradient steps, and what is told of them."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import LossModule

from torchrl_vmfer import VMFUncertainty

__all__ = ["agreement", "compiled"]


def agreement(
    info: dict[str, Tensor], uncertainty: VMFUncertainty, batch: TensorDictBase
) -> dict[str, Tensor]:
    """Mean and deciles of factor and resultant length over a batch of the actor.

    Args:
        info: the metadata of the actor's loss, which hold both where the loss measures.
        uncertainty: measures where it does not.
        batch: the batch.
    """
    if "vmf_factor" not in info:
        with torch.random.fork_rng():  # looking changes nothing
            measured = uncertainty(batch.select("observation"))["vmf"]
        info = {f"vmf_{name}": value for name, value in measured.items()}
    statistics = {}
    for name in ("factor", "resultant_length"):
        values = info[f"vmf_{name}"].sort().values
        statistics[f"{name}_mean"] = values.mean()
        for percent in (10, 50, 90):
            statistics[f"{name}_q{percent}"] = values[(len(values) - 1) * percent // 100]
    return statistics


def compiled(loss: LossModule, *names: str) -> None:
    """Compiles methods of a loss, which pays on GPUs."""
    for name in names:
        setattr(loss, name, torch.compile(getattr(loss, name)))
