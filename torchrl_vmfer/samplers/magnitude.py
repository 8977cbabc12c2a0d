"""Base class of the samplers whose probabilities are a power of a magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchrl_vmfer.samplers.power_distribution import PowerDistribution
from torchrl_vmfer.samplers.scored import ScoredSampler

__all__ = ["MagnitudeSampler", "check_exponent"]

_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_EXPONENT = 7  # of a float32, in double precision


def check_exponent(name: str, value: float) -> None:
    """Raises an error unless every power of a float32 is a positive number in double precision."""
    if not 0 <= value <= _LARGEST_EXPONENT:
        raise ValueError(
            f"{name} must lie in [0, {_LARGEST_EXPONENT}], so that no power overflows, got "
            f"{value!r}."
        )


class MagnitudeSampler(ScoredSampler):
    """A sampler with P ∝ priority^power, where new slots get the largest priority so far.

    Subclasses set ``_rule`` and implement ``default_priority``.

    Args:
        power: the exponent of the priority.
    """

    _usual = (0.0, _LARGEST)
    _rule: str  # the end of the message for a priority that is negative or not finite

    def __init__(self, power: float) -> None:
        super().__init__()
        self._distribution: PowerDistribution = PowerDistribution(float(power))
        self._largest = 0.0

    def _are_valid(self, priorities: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        return (priorities >= 0) & (priorities <= _LARGEST), self._rule

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        self._largest = max(self._largest, float(priorities.max()))
        return priorities

    def reset(self) -> None:
        """Removes all priorities."""
        super().reset()
        self._largest = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return super().state_dict() | {"max_priority": self._largest}

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        super()._check_state(state_dict)
        largest = state_dict["max_priority"]
        if not (isinstance(largest, (int, float)) and 0 <= largest <= _LARGEST):
            raise ValueError(
                f"max_priority of the state is {largest!r}, not a number of at least 0."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        super().load_state_dict(state_dict)
        self._largest = float(state_dict["max_priority"])
