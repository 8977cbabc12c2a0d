"""Base classes of the samplers: TorchRL's sampler contract for any storage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import SeamSampler
from torchrl_vmfer.plain_state import load_file, save_file

__all__ = ["BaseSampler", "SlotSampler", "effective_sample_size"]


def effective_sample_size(probabilities: Tensor) -> float:
    """The effective number of slots of a distribution, 1 / Σ P².

    It is n for the uniform distribution over n slots, and 1 if a single slot is always drawn.

    Args:
        probabilities: the probability of each slot. They sum to 1.

    Examples:
        >>> effective_sample_size(torch.tensor([0.25, 0.25, 0.25, 0.25]))
        4.0
        >>> effective_sample_size(torch.tensor([0.5, 0.5, 0.0, 0.0]))
        2.0
    """
    if probabilities.numel() == 0:
        return 0.0
    return 1 / float(probabilities.double().square().sum())


class BaseSampler(SeamSampler):
    """A sampler with known probabilities, whose state is saved in one file.

    Subclasses implement ``sample``, ``reset``, ``load_state_dict`` and ``probabilities``.
    """

    _file: ClassVar[str]  # the name of the file

    def probabilities(self, storage: Storage | None = None) -> Tensor:
        """The exact probability of every live slot, in double precision.

        Args:
            storage: the storage to synchronize with first. Needed only if it was changed without
                notifying the sampler.
        """
        raise NotImplementedError

    def effective_sample_size(self, storage: Storage | None = None) -> float:
        """The effective number of slots that batches are drawn from, 1 / Σ P².

        Args:
            storage: as in :meth:`probabilities`.

        Returns:
            NaN if the probabilities are not known.
        """
        try:
            return effective_sample_size(self.probabilities(storage))
        except NotImplementedError:
            return math.nan

    def _settings(self) -> dict[str, Any]:
        """The arguments that a loaded state must have in common with the sampler."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return {"sampler": type(self).__name__, **self._settings()}

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Raises an error if a state is not one of this class and these settings."""
        name = type(self).__name__
        saved = state_dict.get("sampler") if isinstance(state_dict, dict) else None
        if saved != name:
            raise ValueError(
                f"The state was not saved by {name} but by {saved or 'another class'}: load it "
                "into a sampler of the class that saved it."
            )
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"The state of {name} lacks {', '.join(sorted(missing))}.")
        for setting, own in self._settings().items():
            given = state_dict[setting]
            if given != own:
                raise ValueError(
                    f"The state was saved with {setting}={given!r}, but this sampler has "
                    f"{setting}={own!r}: construct it with the {setting} of the state."
                )

    def dumps(self, path: str | Path) -> None:
        """Saves the state in the folder ``path``. A failed save leaves an older one intact."""
        save_file(self.state_dict(), Path(path) / self._file)

    def loads(self, path: str | Path) -> None:
        """Loads a state saved by :meth:`dumps`, or resets the sampler if there is none."""
        file = Path(path) / self._file
        if file.exists():
            self.load_state_dict(load_file(file))
        else:
            self.reset()


class SlotSampler(BaseSampler):
    """A TorchRL sampler that draws slot numbers from a distribution over the live slots.

    TorchRL reports written slots through ``mark_update``. It does not report writes of another
    process, data that were already in the storage, or a storage that another buffer emptied or
    loaded. Every use therefore first compares the length that the sampler knows with that of the
    storage.

    The state is kept in NumPy arrays, not tensors. ``torch.compile`` cannot trace them, so it
    inserts a graph break at each call of the sampler.

    Subclasses implement ``num_slots``, ``_resize``, ``_draw`` and ``_probabilities``.
    """

    # Not __len__: a sampler without slots would be falsy.
    @property
    def num_slots(self) -> int:
        """The number of live slots that the sampler knows of."""
        raise NotImplementedError

    def _resize(self, length: int) -> None:
        """Sets the number of live slots."""
        raise NotImplementedError

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws flat slot numbers and returns them with metadata for the batch."""
        raise NotImplementedError

    def _probabilities(self) -> np.ndarray:
        raise NotImplementedError

    def _follow(self, storage: Storage) -> None:
        if len(storage) != self.num_slots:
            self._resize(len(storage))

    @torch.compiler.disable
    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws ``batch_size`` indices with replacement."""
        self._follow(storage)
        if self.num_slots == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 0:
            raise ValueError(f"batch_size must be an integer of at least 0, got {batch_size!r}.")
        index, info = self._draw(batch_size)
        if storage.ndim > 1:
            return torch.unravel_index(index, storage.shape), info
        return index, info

    @torch.compiler.disable
    def probabilities(self, storage: Storage | None = None) -> Tensor:
        """The exact probability of every live slot, in double precision.

        Args:
            storage: the storage to synchronize with first. Needed only if it was changed without
                notifying the sampler.
        """
        if storage is not None:
            self._follow(storage)
        return torch.from_numpy(self._probabilities())
