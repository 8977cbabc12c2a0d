"""Data collection with Ray: the replay buffer and the workers are Ray actors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.collectors.distributed import RayCollector

from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.collection._upstream import CommandedCollector, sync_no_weights
from vmfer_recipes.collection.collectors import StepCount, kept
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import make_environment

__all__ = ["RayWorkers", "RemoteReplay"]

_FORWARDED = (
    "load_state_dict",
    "sample",
    "sample_actor",
    "state_dict",
    "update_actor_priority",
    "update_priority",
)


def _ray_options(num_workers: int) -> dict[str, Any]:
    """Options for a cluster on this machine, unless RAY_ADDRESS names another one."""
    return {
        "num_cpus": None if "RAY_ADDRESS" in os.environ else num_workers + 1,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "error",
        # Actors can import the same packages as this process.
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
    }


class _ReplayActor(ActorCriticReplayBuffer):
    """The buffer in the Ray actor, with its own random generator."""

    def __init__(self, *, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs, generator=torch.Generator().manual_seed(seed))
        self.drop_transform()


class RemoteReplay:
    """The learner's handle of a buffer in a Ray actor, with the methods that a recipe uses.

    Args:
        cfg: the configuration of the run.
        **parts: functions that make the storage, the writer and the samplers.
    """

    def __init__(self, cfg: TrainingConfig, **parts: Callable[[], Any]) -> None:
        options: Any = cfg.collector
        try:
            self.actor = _ReplayActor(
                seed=cfg.seed,
                batch_size=cfg.batch_size,
                **parts,
                service_backend="ray",
                service_backend_options={
                    "ray_init_config": _ray_options(options.num_workers),
                    "remote_config": {"num_cpus": 0},
                },
            )
        except Exception as error:  # Ray has no specific class
            raise UserError(
                f"Ray could not be started ({first_line(error)}): try again on a quieter machine, "
                "or use collector=multi_async."
            ) from error
        self._client = self.actor.client()

    @property
    def write_count(self) -> int:
        """The number of transitions written so far."""
        return self._client.write_count

    def __getattr__(self, name: str) -> Any:
        if name not in _FORWARDED:
            raise AttributeError(f"RemoteReplay has no attribute {name!r}.")
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except ValueError:  # from the buffer itself, which is alive
                raise
            except Exception as error:  # Ray has no specific class for a lost actor
                raise UserError(
                    f"The replay buffer of collector=ray failed in {name} ({first_line(error)}): "
                    "run the same command to resume from the last checkpoint."
                ) from error

        return call


class RayWorkers(StepCount):
    """Ray actors, each with its own environment.

    They receive the newest weights before each batch of frames. Each is at most one batch ahead of
    the learner.

    Args:
        policy: the exploring policy.
        buffer: receives every transition.
        cfg: the configuration of the run.
    """

    def __init__(
        self, policy: TensorDictModuleBase, buffer: RemoteReplay, cfg: TrainingConfig
    ) -> None:
        self._policy = policy
        self._buffer = buffer
        self._cfg = cfg
        self._frames = 0
        self._workers: Any = None  # TorchRL's collector, once it has started

    def collect(self) -> None:
        """Waits for the workers if they are behind."""
        self._steps += 1
        try:
            if self._workers is None:
                self._start()
            while self._frames < self._steps:
                self._send_weights()
                next(self._iterator)
                self._frames = self._buffer.write_count
        except RayError as error:
            raise UserError(
                f"A worker of collector=ray has died ({first_line(error)}): run the same "
                "command to resume from the last checkpoint."
            ) from error

    def _start(self) -> None:
        cfg: Any = self._cfg.collector
        seeds = torch.randint(2**31, (cfg.num_workers,)).tolist()  # different ones after a resume
        self._workers = RayCollector(
            [partial(make_environment, self._cfg.env, seed) for seed in seeds],
            self._policy,
            collector_class=_RayWorker,
            collector_kwargs=[{"seed": seed, "postproc": kept} for seed in seeds],
            frames_per_batch=cfg.frames_per_batch,
            total_frames=2**62,  # unlimited
            replay_buffer=self._buffer.actor,
            ray_init_config=_ray_options(cfg.num_workers),
            remote_configs={"num_cpus": 1},
            weight_sync_schemes={},  # they do not support this policy
        )
        sync_no_weights(self._workers)  # `_send_weights` does
        self._frames = self._buffer.write_count
        self._iterator = iter(self._workers)

    def _send_weights(self) -> None:
        is_random = self._frames < self._cfg.init_random_frames
        weights = ray.put([weight.detach() for weight in _weights(self._policy)])
        for worker in self._workers.remote_collectors:
            worker.take.remote(weights, is_random)

    def close(self) -> None:
        """Stops the actors and Ray."""
        if self._workers is not None:
            self._workers.shutdown()
        self._buffer.actor.shutdown()
        ray.shutdown()


def _weights(policy: Any) -> list[Tensor]:
    return list(policy.module.network.parameters())


class _RayWorker(CommandedCollector):
    """TorchRL's collector in a Ray actor. The learner controls when it acts at random."""

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        torch.manual_seed(seed)
        super().__init__(*args, **kwargs, auto_register_policy_transforms=False)

    def take(self, weights: list[Tensor], is_random: bool) -> None:
        """Sets new weights."""
        self.is_random = is_random
        for weight, value in zip(_weights(self.policy), weights, strict=True):
            weight.data.copy_(value)
