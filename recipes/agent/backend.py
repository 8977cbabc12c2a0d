"""The components of a training loop that have a general and a fast version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictParams
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter

from torchrl_vmfer.compiled import functions
from torchrl_vmfer.compiled.explorer import make_explorer
from torchrl_vmfer.networks import Explorer
from torchrl_vmfer.replay.rows import RowStorage, RowWriter, extend
from vmfer_recipes.collection.direct import DirectCollector

__all__ = ["Backend", "make_backend"]


@dataclass(frozen=True)
class Backend:
    """The components of a training loop that have a general and a fast version.

    Both versions compute the same numbers, up to rounding, and draw the same random numbers.

    Attributes:
        is_fast: whether to use compiled updates where they serve.
        storage: the class of the replay buffer's storage.
        writer: the class of its writer.
        extend: writes transitions to a replay buffer, as its ``extend`` does.
        collector: the class of the collector.
        explorer: makes the explorer of an actor's network.
        note: what a user should know about this version; usually empty.
    """

    is_fast: bool
    storage: Callable[..., LazyTensorStorage]
    writer: Callable[..., TensorDictRoundRobinWriter]
    extend: Callable[[Any, TensorDictBase], Any]
    collector: type[Collector]
    explorer: Callable[..., Explorer]
    note: str = ""

    def adam(
        self,
        parameters: TensorDictParams | list[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> torch.optim.Adam:
        """Makes an optimizer.

        Args:
            parameters: a list of parameters, or those of a loss, whose buffers are left out.
            lr: the learning rate.
            betas: Adam's coefficients for the running averages of the gradient and its square.
        """
        if isinstance(parameters, TensorDictParams):
            tensors = parameters.flatten_keys().values()
            parameters = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
        return torch.optim.Adam(parameters, lr=lr, betas=betas, fused=True)


_GENERAL = Backend(
    is_fast=False,
    storage=LazyTensorStorage,
    writer=TensorDictRoundRobinWriter,
    extend=TensorDictReplayBuffer.extend,
    collector=Collector,
    explorer=Explorer,
)
_FAST = Backend(
    is_fast=True,
    storage=RowStorage,
    writer=RowWriter,
    extend=extend,
    collector=DirectCollector,
    explorer=make_explorer,
)


def make_backend(fast: bool) -> Backend:
    """Returns TorchRL's components, or the fast ones that replace them.

    The fast version also flushes denormal numbers to zero in this process. Adam accumulates them
    for dead units, and computing with them is hundreds of times slower.
    """
    torch.set_flush_denormal(fast)
    if not fast:
        return _GENERAL
    if functions() is not None:
        return _FAST
    note = "Training is slower than it could be: torchrl_vmfer was installed without a C compiler."
    return replace(_FAST, note=note)
