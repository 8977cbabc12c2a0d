"""Small buffers for each sampler, and the exact probabilities of their slots."""

import itertools
from functools import partial

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictReplayBuffer,
)

from torchrl_vmfer import (
    GradientNormSampler,
    InverseTDSampler,
    LAPSampler,
    MixedSampler,
    OldSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import PowerDistribution

ALPHA, BETA = 0.7, 0.5


class CubeSampler(BaseSampler):
    """A sampler with no more than CONTRIBUTING.md asks for."""

    signal = "td_error"
    settings = ("power",)

    def __init__(self, power=3.0):
        super().__init__(PowerDistribution(power))
        self.power = power

    @property
    def default_priority(self):
        return 1.0


# Samplers whose probabilities are a known function of the priorities.
MAKERS = {
    "uncertainty": partial(VMFSampler, "uncertainty"),
    "rank": partial(VMFSampler, "rank"),
    "power": partial(VMFSampler, power=-2.0),
    "lap": LAPSampler,
    "inverse_td": InverseTDSampler,
    "rank_prioritized": partial(RankPrioritizedSampler, ALPHA, BETA),
}
EVERY = MAKERS | {
    "smoothed": partial(VMFSampler, smoothing=0.9),
    "pool": partial(VMFSampler, "rank", pool_size=16),
    "gradient_norm": GradientNormSampler,
    "custom": CubeSampler,
    "recent": partial(RecentSampler, 0.8, 2, 5),
    "old": partial(OldSampler, 3.0),
    "vmf_random": lambda: MixedSampler(VMFSampler(power=8), RandomSampler(), 0.3),
    "recent_vmf": lambda: MixedSampler(RecentSampler(0.8, 2, 5), VMFSampler("rank"), 0.45),
    "prioritized_recent": lambda: MixedSampler(
        PrioritizedSampler(10, alpha=0.7, beta=0.5), RecentSampler(0.8, 2, 5), 0.5
    ),
    "random_rank_prioritized": lambda: MixedSampler(RandomSampler(), RankPrioritizedSampler(), 0.7),
}


def exact_probabilities(sampler, priorities):
    """Computes P of every slot from its definition."""
    priorities = np.asarray(priorities, np.float32)
    if isinstance(sampler, (LAPSampler, InverseTDSampler)):
        exponent = sampler.exponent if isinstance(sampler, LAPSampler) else -sampler.exponent
        weights = np.maximum(priorities.astype(np.float64), sampler.floor) ** exponent
    elif isinstance(sampler, VMFSampler) and sampler.mode == "uncertainty":
        weights = priorities.astype(np.float64) ** sampler.power
    else:
        alpha = getattr(sampler, "alpha", 1.0)
        weights = np.empty(len(priorities))
        weights[np.argsort(-priorities)] = np.arange(1, len(priorities) + 1) ** -float(alpha)
        _, tie = np.unique(priorities, return_inverse=True)
        weights = (np.bincount(tie, weights=weights) / np.bincount(tie))[tie]
    return weights / weights.sum()


def marginal_probabilities(factors, pool_size, mode):
    """Computes the probability of each slot over all possible pools."""
    total = np.zeros(len(factors))
    for pool in itertools.product(range(len(factors)), repeat=pool_size):
        np.add.at(total, list(pool), exact_probabilities(VMFSampler(mode), factors[list(pool)]))
    return total / len(factors) ** pool_size


def assert_priorities(sampler, priorities, storage=None):
    expected = exact_probabilities(sampler, priorities)
    actual = sampler.probabilities(storage).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def rows(first, count):
    return TensorDict({"row": torch.arange(first, first + count)}, [count])


def filled_buffer(sampler, count=10, capacity=10, **kwargs):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, **kwargs)
    buffer.extend(rows(0, count))
    return buffer


def used_buffer(sampler):
    """A buffer that has wrapped around, with distinct priorities except for two new slots."""
    buffer = filled_buffer(sampler, 8, batch_size=64)
    if sampler.signal:
        priorities = torch.tensor([2, 1.1, 2.5, 1.6, 1.2, 2.2, 1.4, 1.9])
        buffer.update_priority(torch.arange(8), priorities)
    buffer.sample()
    buffer.extend(rows(0, 4))
    return buffer


def grid(first, *shape):
    count = torch.Size(shape).numel()
    return TensorDict({"row": torch.arange(first, first + count).reshape(shape)}, shape)


def grid_buffer(sampler, num_rows, *shape, buffer_class=TensorDictReplayBuffer, **kwargs):
    capacity = num_rows * torch.Size(shape).numel()
    storage = LazyTensorStorage(capacity, ndim=1 + len(shape))
    return buffer_class(storage=storage, sampler=sampler, **{"dim_extend": 0} | kwargs)


def distinct_priorities(count):
    """Makes distinct priorities in (1, 2.5], in no order."""
    return torch.linspace(2.5, 1.1, count)[torch.randperm(count, generator=seeded(0))]


def seeded(seed):
    return torch.Generator().manual_seed(seed)
