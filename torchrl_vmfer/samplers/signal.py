"""The sampler for the actor that ranks transitions by any signal."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from torchrl_vmfer import arguments
from torchrl_vmfer.samplers.base import BaseSampler
from torchrl_vmfer.samplers.distributions import RankDistribution

_LARGEST = float(np.finfo(np.float32).max)


class SignalSampler(BaseSampler):
    """A sampler for the actor that ranks transitions by any signal.

    P(j) ∝ rank(j)^-abs(power). The largest value has rank 1; if the power is negative, the smallest
    value has rank 1. Only the order of the values matters, so they can be any finite numbers. Equal
    values share the probabilities of their ranks. New transitions rank before all others until they
    have a value, and also share the probabilities of their ranks.

    ``signal`` says which values ``update_priority(index, value)`` expects. The recipes compute
    them: see the page on comparing samplers.

    Args:
        signal: the name of the signal.
        power: the exponent of the rank, from -100 to 100; 0 is uniform.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=SignalSampler("value_gap", power=-1)
        ... )
        >>> index = buffer.extend(TensorDict({"observation": torch.randn(2, 2)}, [2]))
        >>> buffer.update_priority(index, torch.tensor([5.0, 0.1]))
        >>> buffer.sampler.probabilities()
        tensor([0.3333, 0.6667], dtype=torch.float64)
    """

    settings = ("signal", "power")
    default_priority = _LARGEST
    _numbers = ()
    _range = (-_LARGEST, _LARGEST)
    _rule = "a signal is a finite number: check the function that computes it."

    def __init__(self, signal: str, power: float = arguments.SIGNAL_POWER.default) -> None:
        arguments.SIGNAL_POWER.check("power", power)
        self.signal, self.power = signal, float(power)
        self._sign = np.float32(-1 if power < 0 else 1)
        super().__init__(RankDistribution(abs(self.power)))

    def _stores(self, slots: np.ndarray, given: Tensor) -> bool:
        return False  # compiled code would store the values as they are

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        return _rankable(self._sign * priorities)


def _rankable(values: np.ndarray) -> np.ndarray:
    """Positive numbers in the same order, as ranks require. They have one bit less."""
    values = values.astype(np.float32).clip(-1e30, 1e30) + np.float32(0)  # turns -0 into 0
    bits = values.view(np.int32).astype(np.int64)
    ordered = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return ((ordered + 2**31) >> 1).astype(np.int32).view(np.float32)
