"""A learning curve as one number."""

from __future__ import annotations

import numpy as np

__all__ = ["FINAL_SHARE", "area", "final"]

# The last tenth of the run, because a single evaluation of ten episodes is noisy.
FINAL_SHARE = 0.1


def final(steps: np.ndarray, values: np.ndarray, total_frames: int) -> float:
    """The mean of the evaluations in the last tenth of the run."""
    return float(values[steps >= (1 - FINAL_SHARE) * total_frames].mean())


def area(steps: np.ndarray, values: np.ndarray) -> float:
    """The area under the curve per step by the trapezoidal rule: the mean over the run."""
    span = steps[-1] - steps[0]
    if span == 0:
        return float(values[0])
    return float((np.diff(steps) * (values[1:] + values[:-1]) / 2).sum() / span)
