"""The one place where the recipes use private names of TorchRL.

An upgrade of TorchRL that removes one of them fails in ``tests/recipes/test_upstream_seam.py``.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector

__all__ = ["RELIED_ON", "CommandedCollector", "carried", "sync_no_weights", "weight_sync_schemes"]

# By class: its private names that are used below. (Names, since importing Ray's takes time.)
RELIED_ON: dict[str, tuple[str, ...]] = {
    "torchrl.collectors.Collector": ("_carrier", "_should_use_random_frames"),
    "torchrl.collectors.MultiSyncCollector": ("_weight_sync_schemes",),
    "torchrl.collectors.MultiAsyncCollector": ("_weight_sync_schemes",),
    "torchrl.collectors.distributed.RayCollector": ("_weight_sync_initialized",),
}


def carried(collector: Collector) -> TensorDictBase:
    """What a collector carries from one step to the next, such as the current observation.

    ``Collector.state_dict`` leaves it out, and so restarts the episode.
    """
    return collector._carrier


def weight_sync_schemes(workers: MultiSyncCollector | MultiAsyncCollector) -> list[Any]:
    """The objects by which a collector sends weights to its workers."""
    return list((workers._weight_sync_schemes or {}).values())


def sync_no_weights(workers: Any) -> None:
    """Keep a ``RayCollector`` from sending weights to its workers."""
    workers._weight_sync_initialized = True


class CommandedCollector(Collector):
    """A collector that is told whether to act at random. TorchRL's asks its buffer every frame.

    Attributes:
        is_random: whether the next actions are random.
    """

    is_random = True

    def _should_use_random_frames(self) -> bool:
        return self.is_random
