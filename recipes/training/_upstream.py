"""The one place where the recipes use private names of TorchRL.

An upgrade of TorchRL that removes one of them fails in ``tests/recipes/test_upstream_seam.py``.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import ReplayBuffer

__all__ = ["RELIED_ON", "carried", "weight_sync_schemes", "write_lock"]

# By class: its private names that are used below.
RELIED_ON: dict[type, tuple[str, ...]] = {
    Collector: ("_carrier",),
    MultiSyncCollector: ("_weight_sync_schemes",),
    MultiAsyncCollector: ("_weight_sync_schemes",),
    ReplayBuffer: ("_write_lock",),
}


def carried(collector: Collector) -> TensorDictBase:
    """What a collector carries from one step to the next, such as the current observation.

    ``Collector.state_dict`` leaves it out, hence restarts the episode.
    """
    return collector._carrier


def weight_sync_schemes(workers: MultiSyncCollector | MultiAsyncCollector) -> list[Any]:
    """The objects by which a collector sends weights to its workers."""
    return list((workers._weight_sync_schemes or {}).values())


def write_lock(buffer: Any) -> Any:
    """The lock that processes hold while they write to a shared replay buffer."""
    return buffer._write_lock
