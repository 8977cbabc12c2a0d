"""Gradient steps, and what is told of them."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictParams
from torch import Tensor

__all__ = ["adam", "descend", "vmf_statistics"]


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


def vmf_statistics(info: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mean and deciles of factor and resultant length over a batch of the actor."""
    statistics = {}
    for name in ("factor", "resultant_length"):
        values = info[f"vmf_{name}"].sort().values
        statistics[f"{name}_mean"] = values.mean()
        for percent in (10, 50, 90):
            statistics[f"{name}_q{percent}"] = values[(len(values) - 1) * percent // 100]
    return statistics
