"""Base class of the samplers whose probabilities are a power of the TD error."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from torchrl_vmfer.samplers.magnitude import MagnitudeSampler, check_exponent

__all__ = ["TDErrorSampler"]


class TDErrorSampler(MagnitudeSampler):
    """A sampler with P ∝ max(|δ|, floor)^(sign · exponent), where δ is the stored TD error.

    A new transition gets the largest TD error so far, and at least ``floor``. Subclasses set
    ``_sign``.

    Args:
        exponent: the exponent without its sign, from 0 (uniform) to 7.
        floor: smaller TD errors count as this number.
    """

    signal: ClassVar[str] = "td_error"
    _sign: ClassVar[int]
    _rule = "a TD error is a finite number of at least 0: pass |TD error|."

    def __init__(self, exponent: float = 0.4, floor: float = 1.0) -> None:
        check_exponent("exponent", exponent)
        if not 1e-30 <= floor <= 1e30:
            raise ValueError(f"floor must lie in [1e-30, 1e30], got {floor!r}.")
        super().__init__(self._sign * exponent)
        self._floor = float(floor)

    @property
    def exponent(self) -> float:
        """The exponent without its sign."""
        return self._sign * self._distribution.power

    @property
    def floor(self) -> float:
        """Smaller TD errors count as this number."""
        return self._floor

    @property
    def default_priority(self) -> float:
        """The TD error of a newly written slot: the largest one so far, and at least ``floor``."""
        return max(self._largest, self._floor)

    def _scored(self, slots: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        return np.maximum(super()._scored(slots, priorities), np.float32(self._floor))

    def _settings(self) -> dict[str, Any]:
        return {"exponent": self.exponent, "floor": self._floor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of a state. An incompatible state changes nothing."""
        super().load_state_dict(state_dict)
        np.maximum(self._priorities.array, np.float32(self._floor), out=self._priorities.array)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exponent={self.exponent}, floor={self.floor})"
