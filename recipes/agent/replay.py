"""The replay buffer of a recipe, and how the actor's batch is drawn from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import RandomSampler, TensorDictRoundRobinWriter
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.envs import GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    CandidatePool,
    HindsightReplayBuffer,
    MixedSampler,
    NStepReplayBuffer,
    VMFSampler,
    VMFUncertainty,
)
from torchrl_vmfer._torchrl import MappableStorage
from torchrl_vmfer.compiled.rows import RowStorage, RowWriter
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import Distribution, PowerDistribution, uniform
from vmfer_recipes.agent.observations import Observations
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import (
    DirectSamplerConfig,
    FreshSamplerConfig,
    HindsightReplayConfig,
    OnPolicySamplerConfig,
    SamplerConfig,
    SharedSamplerConfig,
)
from vmfer_recipes.config.plugins import instantiate
from vmfer_recipes.config.training import TrainingConfig

# The number of the environment that a transition comes from, stored if the buffer has episodes.
ENVIRONMENT = "environment"


def make_replay_buffer(env: GymWrapper, cfg: TrainingConfig) -> ActorCriticReplayBuffer:
    """Makes the buffer selected by ``replay=`` and ``sampler=``.

    It has a separate random generator, so that sampling does not affect the random numbers of the
    environment and of exploration.
    """
    _check_room(env, cfg)
    storage = RowStorage if cfg.fast else MappableStorage
    folder = Path(cfg.run_dir) if cfg.replay.storage == "memmap" else None
    writer = RowWriter if cfg.fast else TensorDictRoundRobinWriter
    critic_sampler = instantiate(cfg.replay, Sampler, "replay")
    actor_sampler = _actor_sampler(cfg.sampler)
    if cfg.dataset_share:
        critic_sampler = DatasetSampler(cfg.dataset_share)
        if isinstance(cfg.sampler, FreshSamplerConfig):
            actor_sampler = DatasetSampler(cfg.dataset_share)
    options: dict[str, Any] = {
        # `compilable=True`: no other process reads the counters, so they need no shared memory.
        "storage": storage(cfg.replay.buffer_size, folder=folder, compilable=True),
        "writer": writer(compilable=True),
        "critic_sampler": critic_sampler,
        "actor_sampler": actor_sampler,
        "batch_size": cfg.batch_size,
        "generator": torch.Generator().manual_seed(cfg.seed),
    }
    if cfg.n_step > 1 or cfg.replay.has_goals:
        options |= {"n_step": cfg.n_step, "gamma": cfg.gamma, "trajectory_key": ENVIRONMENT}
    buffer: ActorCriticReplayBuffer
    if isinstance(cfg.replay, HindsightReplayConfig):
        buffer = HindsightReplayBuffer(
            reward_fn=HindsightReplayBuffer.gymnasium_reward(env.simulator),
            her_ratio=cfg.replay.her_ratio,
            strategy=cfg.replay.strategy,  # type: ignore[arg-type]  # one of its choices
            **options,
        )
    elif cfg.n_step > 1:
        buffer = NStepReplayBuffer(**options)
    else:
        buffer = ActorCriticReplayBuffer(**options)
    buffer.drop_transform()
    return buffer


def _check_room(env: GymWrapper, cfg: TrainingConfig) -> None:
    """Raises an error if a full buffer exceeds the memory of this machine, or the disk's space."""
    seen, action = env.observation_spec.zero().bytes(), env.action_spec.zero().nbytes
    buffer_size = cfg.replay.buffer_size
    size = buffer_size * (2 * seen + action + 4 + 2)  # a reward and two flags
    if cfg.replay.storage == "memmap":
        folder = Path(cfg.run_dir).absolute()
        while not folder.exists():
            folder = folder.parent
        room = shutil.disk_usage(folder).free
        what, cure = f"free disk space in {cfg.run_dir}", "lower it, or choose another run_dir"
    else:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        what, cure = "memory", "lower it, or use replay.storage=memmap"
    if size > room:
        raise UserError(
            f"replay.buffer_size={buffer_size} needs {size / 1e9:,.1f} GB for the transitions of "
            f"this task, but this machine has {room / 1e9:,.1f} GB of {what}: {cure}."
        )


class SaturatedSampler(VMFSampler):
    """Draws by exp(saturation) instead of the factor. Both are from 1 to e, and 1 if unknown."""

    signal = "saturation"


class DatasetSampler(BaseSampler):
    """Draws a share of each batch from a dataset, and the rest from later transitions.

    This is the symmetric sampling of RLPD (Ball et al., 2023, arXiv 2302.02948). Both parts are
    uniform; before there are later transitions, the whole batch is from the dataset. The dataset is
    in the first ``size`` slots. The ``share`` is rounded to whole transitions.
    """

    records_updates = False
    settings = ("share", "size")
    _numbers = ()
    default_priority = 0.0
    update_priority = Sampler.update_priority  # has no effect, and says so

    def __init__(self, share: float) -> None:
        super().__init__(Distribution())
        self.share, self.size = share, 0

    def _draw(self, storage: Storage, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        later = self.num_slots - self.size
        first = round(self.share * count) if later else count
        slots = uniform(count, self.generator) * np.where(
            np.arange(count) < first, self.size, later
        )
        slots[first:] += self.size
        return torch.from_numpy(slots.astype(np.int64)), {}


class ReturnSampler(BaseSampler):
    """Draws by the returns of the episodes of a dataset: P ∝ (G - min G) / (max G - min G) + floor.

    This is the prioritization by return of ODPR (Yue et al., 2023, arXiv 2306.05412).
    """

    records_updates = False
    settings = ("floor",)
    _numbers = ()
    default_priority = 1.0
    update_priority = Sampler.update_priority  # has no effect, and says so

    def __init__(self, floor: float) -> None:
        super().__init__(PowerDistribution(1.0))
        self.floor = floor

    def learn(self, returns: Tensor) -> None:
        """Sets the probabilities of the first slots, from the return of the episode of each."""
        spread = (returns - returns.min()) / (returns.max() - returns.min()).clamp_min(1e-9)
        self._write(np.arange(len(returns)), (spread + self.floor).float().numpy(), 0)


def _actor_sampler(cfg: SamplerConfig) -> Sampler:
    if isinstance(cfg, (SharedSamplerConfig, DirectSamplerConfig)):
        return RandomSampler()  # it draws no batches
    sampler = instantiate(cfg, Sampler, "sampler")
    share = getattr(cfg, "share", 1)
    return sampler if share == 1 else MixedSampler(sampler, RandomSampler(), share)


def stores_td_errors(buffer: ActorCriticReplayBuffer) -> bool:
    """Whether the critics' sampler takes priorities, which are then TD errors."""
    # The method of TorchRL's base class only warns.
    return type(buffer.critic_sampler).update_priority is not Sampler.update_priority


def make_actor_sampling(
    buffer: ActorCriticReplayBuffer,
    observations: Observations,
    actor: TensorDictModuleBase,
    uncertainty: VMFUncertainty,
    cfg: TrainingConfig,
    entries: Sequence[str] = ("observation",),
) -> Callable[[], TensorDictBase] | None:
    """Makes the function that draws the actor's batch; ``None`` if it is the critics' batch.

    The caller applies the preprocessing, after which the batch has the given entries.
    """
    sampler = cfg.sampler
    if isinstance(sampler, SharedSamplerConfig):
        return None
    keys = observations.stored_keys(entries)

    def measure(batch: TensorDictBase) -> TensorDictBase:
        return uncertainty(observations(batch))

    if isinstance(sampler, DirectSamplerConfig):
        mode: Any = sampler.mode
        pool = CandidatePool(buffer, sampler.num_candidates, mode, score=measure)
        return partial(pool.sample, keys=keys)
    draw = partial(buffer.sample_actor, keys=keys)
    if isinstance(sampler, OnPolicySamplerConfig):
        sizes = sampler.num_batches, cfg.batch_size
        return lambda: _closest_batch(buffer, observations, actor, sizes, keys)
    return draw


def weighted_mean(values: Tensor, batch: TensorDictBase, info: Mapping[str, Tensor]) -> Tensor:
    """The mean over a batch, weighted as in the loss of the actor that returned ``info``."""
    weight = info.get("vmf_weight", batch.get("priority_weight", None))
    return values.mean() if weight is None else (values * weight).sum() / weight.sum()


def _closest_batch(
    buffer: ActorCriticReplayBuffer,
    observations: Observations,
    actor: TensorDictModuleBase,
    sizes: tuple[int, int],
    keys: Sequence[str],
) -> TensorDictBase:
    """Draws several uniform batches and returns the one whose actions are closest to the policy's.

    This is the idea of the actor's half of DPER (Lorasdagi et al., 2025, arXiv 2512.05320), which
    follows KLPER (Cicek et al., 2021, arXiv 2111.01865). Both choose the batch by a KL divergence
    between stored and current actions; this function uses :func:`action_distances`.
    """
    number, size = sizes
    read = list(dict.fromkeys([*keys, "action"]))
    candidates = buffer.sample_actor(number * size, keys=read)
    policy = policy_action(actor, observations(candidates.select(*observations.in_keys)))
    stored = candidates["action"].to(policy.device)
    chosen = int(action_distances(stored, policy, number).argmin())
    candidates = candidates.select(*keys, "index")
    return candidates[chosen * size : (chosen + 1) * size]


def policy_action(actor: TensorDictModuleBase, batch: TensorDictBase) -> Tensor:
    """The policy's action without noise. Its components are in [-1, 1]."""
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return actor(batch.select(*actor.in_keys))["action"]


def saturation(actor: TensorDictModuleBase, batch: TensorDictBase) -> Tensor:
    """The mean absolute component of the policy's action, for each state of a batch."""
    return policy_action(actor, batch).abs().mean(-1)


def action_distances(stored: Tensor, policy: Tensor, number: int) -> Tensor:
    """The mean squared distance between stored actions and the policy's, for each of many batches.

    If the policy explores with Gaussian noise of a fixed scale, the batch with the smallest
    distance is the one that the policy would most likely have produced. The actions of all batches
    are concatenated, ``[number * size, A]``.

    Example:
        >>> stored = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
        >>> action_distances(stored, torch.tensor([[1.0], [0.0], [1.0], [0.8]]), 2)
        tensor([0.5000, 0.0200])
    """
    distances = (stored - policy).square().flatten(1).sum(-1)
    return distances.unflatten(0, (number, -1)).mean(-1)


def unchanged_random_numbers(device: torch.device | str) -> AbstractContextManager[None]:
    """A context that restores the state of PyTorch's random generators at its end.

    GPUs other than that of the networks are left alone: saving their state would initialize them.
    """
    device = torch.device(device)
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])
