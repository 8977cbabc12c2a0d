"""The only module of the recipes that uses private names of TorchRL.

``tests/recipes/test_upstream_seam.py`` fails if an upgrade of TorchRL removes one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase

__all__ = [
    *("RELIED_ON", "CommandedCollector", "OpenCollector"),
    *("carried", "gymnasium_env", "sync_no_weights", "weight_sync_schemes"),
]

# The private names used below, by class. (Class names as strings: importing Ray is slow.)
RELIED_ON: dict[str, tuple[str, ...]] = {
    "torchrl.collectors.Collector": (
        *("_carrier", "_frames", "_increment_frames", "_iter"),
        *("_should_use_random_frames", "_wrapped_policy"),
    ),
    "torchrl.collectors.MultiSyncCollector": ("_weight_sync_schemes",),
    "torchrl.collectors.MultiAsyncCollector": ("_weight_sync_schemes",),
    "torchrl.collectors.distributed.RayCollector": ("_weight_sync_initialized",),
    "torchrl.envs.GymWrapper": ("_env",),
}


def carried(collector: Collector) -> TensorDictBase:
    """The data that a collector carries between steps, such as the current observation.

    ``Collector.state_dict`` omits them and therefore restarts the episode.
    """
    return collector._carrier


def weight_sync_schemes(workers: MultiSyncCollector | MultiAsyncCollector) -> list[Any]:
    """The objects that send the weights of a collector to its workers."""
    return list((workers._weight_sync_schemes or {}).values())


def sync_no_weights(workers: Any) -> None:
    """Prevents a ``RayCollector`` from sending weights to its workers."""
    workers._weight_sync_initialized = True


class CommandedCollector(Collector):
    """A collector with a flag for random actions. TorchRL's queries its buffer at every frame.

    Attributes:
        is_random: whether the next actions are random.
    """

    is_random = True

    def _should_use_random_frames(self) -> bool:
        return self.is_random


class OpenCollector(Collector):
    """A collector that yields what the ``rollout`` of its subclasses returns, and nothing else.

    Batches are not postprocessed or copied, and CUDA is not synchronized.
    """

    def iterator(self) -> Iterator[TensorDictBase]:
        """Yields batches."""
        while self._frames < self.total_frames:
            self._iter += 1
            batch = self.rollout()
            self._increment_frames(len(batch))
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            yield batch

    def acting_policy(self) -> Any:
        """The policy that the collector calls, on its device."""
        return self._wrapped_policy

    def draws_random_action(self) -> bool:
        """Whether the next frame is one of the initial random frames."""
        return self._should_use_random_frames()


def gymnasium_env(env: EnvBase) -> Any:
    """The Gymnasium environment behind TorchRL's wrapper."""
    return env._env
