"""Environments that break are reported in one line, whatever they do."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vmfer_recipes.training.errors import UserError, diverged, first_line

__all__ = ["Guarded"]


class Guarded(gym.wrappers.TransformObservation):
    """Gymnasium's wrapper, which also refuses exceptions, NaN and infinities."""

    def reset(self, **kwargs: Any) -> Any:
        """Begins an episode."""
        return self._guard(super().reset, **kwargs)

    def step(self, action: np.ndarray) -> Any:
        """Acts once."""
        return self._guard(super().step, action)

    def _guard(self, act: Callable[..., Any], *action: np.ndarray, **kwargs: Any) -> Any:
        try:
            result = act(*action, **kwargs)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise self._fault(
                f"raised {type(error).__name__} ({first_line(error)}; line {place.lineno} of "
                f"{Path(place.filename).name})",
                *action,
            ) from error
        seen = result[0]
        for key, value in seen.items() if isinstance(seen, dict) else [("observation", seen)]:
            if not np.isfinite(value).all():
                raise self._fault(f"returned NaN or infinity in {key!r}", *action)
        if action and not np.isfinite(result[1]):
            raise self._fault(f"returned the reward {result[1]}", *action)
        return result

    def _fault(self, fault: str, *action: np.ndarray) -> UserError:
        name = self.spec.id if self.spec else type(self.unwrapped).__name__
        if not np.isfinite(action).all():
            return diverged(f"{name} got an action of NaN or infinity")
        return UserError(
            f"{name} {fault}: mend it and start again, which goes on from the last checkpoint."
        )
