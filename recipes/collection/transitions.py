"""The entries of a stored transition."""

from __future__ import annotations

from tensordict import TensorDictBase

__all__ = ["ENVIRONMENT", "kept"]

# The number of the environment that a transition comes from, stored if hindsight needs it.
ENVIRONMENT = "environment"

# A time limit sets `done` but not `terminated`, and losses bootstrap unless `terminated`. Goals
# are stored if the environment has them.
_KEPT = (
    *(ENVIRONMENT, "observation", "desired_goal", "action"),
    *(("next", "observation"), ("next", "achieved_goal"), ("next", "reward")),
    *(("next", "done"), ("next", "terminated")),
)


def kept(transitions: TensorDictBase) -> TensorDictBase:
    """Selects the entries of transitions to store."""
    return transitions.select(*_KEPT, strict=False)
