"""Gradient steps, and what is told of them."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictParams
from torch import Tensor
from torchrl.objectives import LossModule

from torchrl_vmfer import VMFUncertainty

__all__ = ["adam", "agreement", "compiled", "descend"]


def adam(parameters: TensorDictParams | list[Tensor], lr: float) -> torch.optim.Adam:
    """The optimizer of the paper, in PyTorch's fastest form."""
    if isinstance(parameters, TensorDictParams):
        parameters = list(parameters.flatten_keys().values())
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One gradient step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


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


def compiled(loss: LossModule, *names: str) -> LossModule:
    """Compiles methods of a loss, which pays on GPUs."""
    for name in names:
        setattr(loss, name, torch.compile(getattr(loss, name)))
    return loss
