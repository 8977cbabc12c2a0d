"""A custom sampler, for the actor or for the critics.

Run from this directory:

    python ../../recipes/td3.py env=InvertedPendulum-v4 sampler=recent.RecentSampler sampler.kwargs.decay=0.999
    python ../../recipes/td3.py env=InvertedPendulum-v4 replay=recent.RecentSampler
    python ../../recipes/td3.py -m env=InvertedPendulum-v4 sampler=vmf_rank,recent.RecentSampler seed=0,1
    python ../../recipes/td3.py env=InvertedPendulum-v4 sampler=recent.AgreementSampler

Nothing has to be installed or registered: a module is found if it is in the current directory or
installed.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import RandomSampler
from torchrl.data.replay_buffers.storages import Storage


class RecentSampler(RandomSampler):
    """Prefers new transitions: P(j) ∝ decay^age, with the age counted in transitions.

    It does not define ``update_priority``, so no factors are computed for it. The package's own
    ``RecentSampler`` draws uniformly from the newest transitions instead.

    Args:
        decay: the weight of a transition relative to the next younger one; 1 is uniform.
    """

    def __init__(self, decay: float = 0.9999) -> None:
        super().__init__()
        self.decay = decay
        self.newest = -1  # the slot that was written last

    def extend(self, index: torch.Tensor) -> None:
        """Called by the buffer with the slots of new transitions."""
        self.newest = int(torch.as_tensor(index).flatten()[-1])

    def add(self, index: int) -> None:
        """The same for a single transition."""
        self.newest = int(index)

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draws slots. Returns them, and entries to add to the batch."""
        age = (self.newest - torch.arange(len(storage))) % len(storage)
        weight = self.decay ** age.double()
        return torch.multinomial(weight, batch_size, replacement=True), {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for an exact resume: tensors, numbers and strings."""
        return {"newest": self.newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state."""
        self.newest = state["newest"]


class AgreementSampler(RandomSampler):
    """Draws only transitions on which the critics agree: those with a factor above a threshold.

    It defines ``update_priority``, and so receives the sampling factors of each actor batch.
    As ``replay=`` it would receive the TD errors of each critic batch.

    Args:
        least: the smallest factor, from 1 (opposite gradients) to e (equal gradients).
    """

    def __init__(self, least: float = 1.5) -> None:
        super().__init__()
        self.least = least
        self.factors = torch.empty(0)

    def extend(self, index: torch.Tensor) -> None:
        """Gives new transitions the largest factor, so that each is drawn at some time."""
        index = torch.as_tensor(index).flatten()
        missing = int(index.max()) + 1 - len(self.factors)
        if missing > 0:
            self.factors = torch.cat([self.factors, torch.full((missing,), torch.e)])
        self.factors[index] = torch.e

    def update_priority(
        self, index: torch.Tensor, priority: torch.Tensor, *, storage: Storage | None = None
    ) -> None:
        """Stores the factors of a batch."""
        self.factors[torch.as_tensor(index)] = torch.as_tensor(priority).to(self.factors)

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draws uniformly from the transitions above the threshold; from all if there are none."""
        allowed = (self.factors[: len(storage)] >= self.least).nonzero().flatten()
        if not len(allowed):
            allowed = torch.arange(len(storage))
        return allowed[torch.randint(len(allowed), (batch_size,))], {}

    def state_dict(self) -> dict[str, Any]:
        """The factors."""
        return {"factors": self.factors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from saved factors."""
        self.factors = state["factors"].clone()
