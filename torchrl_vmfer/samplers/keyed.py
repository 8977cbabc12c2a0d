"""What the samplers of this package share: a key per slot, and TorchRL's sampler contract."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer.samplers.rank_distribution import RankDistribution
from torchrl_vmfer.samplers.slot_keys import SlotKeys, flat_slots

__all__ = ["KeyedSampler"]

_FILE = "keys.pt"


class KeyedSampler(Sampler):
    """A TorchRL sampler whose probabilities are a function of one key per slot.

    TorchRL tells a sampler of written slots by ``mark_update``, but not of what another process
    wrote, of data that were in the storage before, or of a storage that another buffer has
    emptied or loaded. So the keys are brought in step with the storage's length at every use.

    Subclasses implement ``_draw``, ``_probabilities``, ``_check``, ``_update`` and
    ``default_priority``, and set ``_usual``; those whose probabilities depend on ranks also set
    ``_ranks``.
    """

    _ranks: RankDistribution | None = None
    _usual: tuple[float, float]  # between which all keys are good

    def __init__(self) -> None:
        self._keys = SlotKeys()

    def _draw(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws flat slot numbers, with what is to be said of them."""
        raise NotImplementedError

    def _probabilities(self) -> np.ndarray:
        raise NotImplementedError

    def _check(self, keys: np.ndarray, epsilon: float) -> tuple[np.ndarray, str]:
        """Tells which keys (known up to a relative error ``epsilon``) are good, and the rule."""
        raise NotImplementedError

    def _update(self, slots: np.ndarray, keys: np.ndarray) -> None:
        """Takes over good keys, by means of ``_write``."""
        raise NotImplementedError

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Draws ``batch_size`` indices with replacement."""
        self._follow(storage)
        if len(self._keys) == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if batch_size < 0:
            raise ValueError(f"batch_size must be at least 0, got {batch_size}.")
        index, info = self._draw(batch_size)
        if storage.ndim > 1:
            return torch.unravel_index(index, storage.shape), info
        return index, info

    def probabilities(self, storage: Storage | None = None) -> Tensor:
        """The exact probability of every live slot, in double precision.

        Args:
            storage: brings the sampler in step with it first. Needed only where the storage
                was changed behind the sampler's back.
        """
        if storage is not None:
            self._follow(storage)
        return torch.from_numpy(self._probabilities())

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Gives freshly written slots the default key. TorchRL calls it at every write."""
        slots = _stored(flat_slots(index, storage))
        if len(slots):
            length = int(slots.max()) + 1
            if length > len(self._keys):
                self._resize(length)
            self._write(slots, np.float32(self.default_priority))

    def update_priority(
        self, index: Any, priority: float | Tensor, *, storage: Storage | None = None
    ) -> None:
        """Sets the keys of some slots. Where a slot is named twice, the last key wins.

        Args:
            index: the slots, as they came with the sample. Rows of -1 are skipped.
            priority: one key for all, or one for each index.
            storage: passed by the replay buffer.
        """
        if storage is not None:
            self._follow(storage)
        slots = flat_slots(index, storage)
        given = torch.as_tensor(priority, device="cpu").detach()
        if given.is_complex():
            raise TypeError(f"A key must be a real number, got {given.dtype}.")
        epsilon = torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0
        if given.dtype is not torch.float32:
            given = given.to(torch.float64)
        keys = given.numpy().reshape(-1)
        if keys.size not in (1, slots.size):
            raise ValueError(
                f"Got {keys.size} values of shape {list(given.shape)} for {slots.size} indices. "
                "Pass one value for all, or one value for each index."
            )
        if keys.size != slots.size:
            keys = np.full(slots.size, keys[0])
        if slots.size == 0:
            return
        # As unsigned numbers, negative ones are large: one look finds both kinds of strange slots.
        if np.maximum.reduce(slots.view(np.uint64)) >= len(self._keys):
            outside = (slots < -1) | (slots >= len(self._keys))
            if outside.any():
                raise IndexError(
                    f"Index {slots[outside][0]} is outside the {len(self._keys)} slots in use."
                )
            slots, keys = slots[slots >= 0], keys[slots >= 0]
        self._refuse_bad(slots, keys, epsilon)
        self._update(slots, keys.astype(np.float32, copy=False))

    def _refuse_bad(self, slots: np.ndarray, keys: np.ndarray, epsilon: float) -> None:
        low, high = self._usual
        if keys.size == 0 or (
            low <= np.minimum.reduce(keys) and np.maximum.reduce(keys) <= high  # not if one is NaN
        ):
            return
        keys = keys.astype(np.float64)
        good, rule = self._check(keys, epsilon)
        if not good.all():
            first = int(np.argmin(good))
            raise ValueError(f"Index {slots[first]} was given {keys[first]}, but {rule}")

    def _write(self, slots: np.ndarray, keys: np.ndarray) -> None:
        self._keys.array[slots] = keys
        if self._ranks is not None:
            self._ranks.mark(slots)

    def _follow(self, storage: Storage) -> None:
        if len(storage) != len(self._keys):
            self._resize(len(storage))

    def _resize(self, length: int) -> None:
        before = len(self._keys)
        self._keys.resize(length, fill=self.default_priority)
        if self._ranks is not None and length > before:
            self._ranks.mark(np.arange(before, length))

    def _empty(self) -> None:
        self._keys = SlotKeys()
        if self._ranks is not None:
            self._ranks.mark_all()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, numbers and strings."""
        return {"sampler": type(self).__name__, "keys": torch.from_numpy(self._keys.array.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a copy of a state. A state that does not fit changes nothing."""
        name = type(self).__name__
        saved = state_dict.get("sampler") if isinstance(state_dict, dict) else None
        if saved != name:
            raise ValueError(
                f"This is not a state of {name} but of {saved}: load it into a sampler of the "
                "class that saved it."
            )
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"The state of {name} lacks {', '.join(sorted(missing))}.")
        self._check_state(state_dict)
        keys = state_dict["keys"]
        if not (isinstance(keys, Tensor) and keys.ndim == 1 and keys.is_floating_point()):
            raise ValueError(f"The keys of the state of {name} are not a vector of numbers.")
        values = keys.double().cpu().numpy()
        self._refuse_bad(np.arange(len(values)), values, torch.finfo(torch.float32).eps)
        self._keys.load(values)
        if self._ranks is not None:
            self._ranks.mark_all()

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Raises an error for what a subclass cannot take over."""

    def dumps(self, path: str | Path) -> None:
        """Saves the state in the folder ``path``. A failing save leaves an older one intact."""
        file = Path(path) / _FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        torch.save(self.state_dict(), unfinished)
        os.replace(unfinished, file)

    def loads(self, path: str | Path) -> None:
        """Loads what :meth:`dumps` saved, or starts afresh where nothing was saved."""
        file = Path(path) / _FILE
        if not file.exists():
            self._empty()
            return
        try:
            state = torch.load(file, weights_only=True)
        except Exception as error:
            # For a pickle PyTorch would advise to execute it.
            is_pickle = isinstance(error, pickle.UnpicklingError)
            reason = "it holds more than plain tensors" if is_pickle else error
            raise RuntimeError(
                f"The sampler state in {file} cannot be read ({reason}). Load an older checkpoint, "
                "or delete the file to start with default keys."
            ) from error
        self.load_state_dict(state)


def _stored(slots: np.ndarray) -> np.ndarray:
    """The slots without those that a writer did not store."""
    return slots[slots >= 0] if len(slots) and slots.min() < 0 else slots
