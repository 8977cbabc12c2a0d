"""The checkpoint of a replay buffer: one state of plain tensors, numbers and strings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import RoundRobinWriter

from torchrl_vmfer._torchrl import position, replace_rows, stored_rows
from torchrl_vmfer.plain_state import plain, tensordict_from_plain, tensordict_to_plain
from torchrl_vmfer.samplers.adapters import load_sampler_state, sampler_state

if TYPE_CHECKING:
    from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer

_PARTS = ("writer", "critic_sampler", "actor_sampler", "transform", "generator")


def state_of(
    buffer: ActorCriticReplayBuffer,
    prefetched: list[tuple[TensorDictBase, dict[str, Any]]],
    copy: bool,
) -> dict[str, Any]:
    """Returns the state of a buffer, with its prefetched batches, while its locks are held."""
    batches = [
        {"batch": tensordict_to_plain(batch, "The prefetched entry "), "info": plain(info, "info")}
        for batch, info in prefetched
    ]
    return {
        "storage": _storage_state(buffer, copy),
        **_parts_state(buffer),
        "prefetched": batches,
    }


def _parts_state(buffer: ActorCriticReplayBuffer) -> dict[str, Any]:
    """The state of everything except the data."""
    length, generator = len(buffer.storage), buffer.generator
    transform = buffer.transform.state_dict() if buffer.has_transform else {}
    device = None if generator is None else str(generator.device)
    writer = dict(buffer.writer.state_dict())
    if "_generation" in writer:
        writer["_generation"] = writer["_generation"][:length]
    return {
        "writer": plain(writer, "writer"),
        "critic_sampler": sampler_state(buffer.critic_sampler, length, "critic_sampler"),
        "actor_sampler": sampler_state(buffer.actor_sampler, length, "actor_sampler"),
        "transform": plain(transform, "transform"),
        "generator": None if generator is None else (generator.get_state(), device),
    }


def load_state(buffer: ActorCriticReplayBuffer, state: dict[str, Any]) -> None:
    """Loads a copy of a state into a buffer whose locks are held.

    Anything that may fail is checked or undone before the data are replaced.
    """
    for name in (*_PARTS, "storage", "prefetched"):
        if name not in state:
            raise ValueError(
                f"The state has no {name!r}: it was not saved by ActorCriticReplayBuffer."
            )
    device = buffer.storage.device  # the saved one may not exist here
    device = None if device == "auto" else device
    rows = [tensordict_from_plain(piece, device) for piece in state["storage"]["rows"]]
    prefetched = [
        (_batch_from_plain(one["batch"], device), plain(one["info"], "info"))
        for one in state["prefetched"]
    ]
    if len(prefetched) > buffer.prefetch_capacity:
        raise ValueError(
            f"The state holds {len(prefetched)} prefetched batches, but the buffer has prefetch="
            f"{buffer.prefetch_capacity}: construct it with the prefetch= of the saved one."
        )
    if state["transform"] and not buffer.has_transform:
        raise ValueError(
            "The saved state includes that of a transform, but this buffer has no transform: "
            "construct the buffer with the same transform as the saved one."
        )
    _check_rows(buffer.storage, state["storage"], rows)
    before = _parts_state(buffer)
    try:
        _load_parts(buffer, state)
    except Exception:
        _load_parts(buffer, before)
        raise
    replace_rows(buffer.storage, rows, buffer.writer)
    buffer.replace_prefetched(prefetched)


def _load_parts(buffer: ActorCriticReplayBuffer, state: dict[str, Any]) -> None:
    load_sampler_state(buffer.actor_sampler, state["actor_sampler"])
    load_sampler_state(buffer.critic_sampler, state["critic_sampler"])
    if buffer.has_transform:
        buffer.transform.load_state_dict(state["transform"])
    buffer.writer.load_state_dict(state["writer"])
    if state["generator"] is not None:
        numbers, device = state["generator"]
        generator = torch.Generator(device=device)
        generator.set_state(numbers.cpu())
        buffer.set_rng(generator)


def _storage_state(buffer: ActorCriticReplayBuffer, copy: bool) -> dict[str, Any]:
    """The live rows, in the order of their slots, as the TensorDicts that form them together."""
    storage, length = buffer.storage, len(buffer.storage)
    pieces: list[TensorDictBase] = []
    if length:
        found = storage.get(slice(0, length if storage.ndim == 1 else storage.shape[0]))
        is_one = isinstance(found, TensorDictBase)
        pieces = [found] if is_one else [row.unsqueeze(0) for row in found]
    is_ring = isinstance(buffer.writer, RoundRobinWriter)
    return {
        "length": length,
        "capacity": storage.max_size,
        "written": position(buffer.writer)[0] if is_ring else length,
        "rows": [tensordict_to_plain(piece, "The stored entry ", copy=copy) for piece in pieces],
    }


def _batch_from_plain(state: dict[str, Any], device: torch.device | None) -> TensorDict:
    """Restores a batch on its device, or on another one if this machine does not have it."""
    try:
        torch.empty(0, device=state["device"])
        device = None
    except (AssertionError, RuntimeError):  # not available
        pass
    return tensordict_from_plain(state, device).clone()


def _check_rows(storage: Storage, state: dict[str, Any], rows: list[TensorDict]) -> None:
    """Raises an error if saved rows do not fit a storage."""
    length, capacity = state["length"], state["capacity"]
    row_size = rows[0].batch_size[1 : storage.ndim].numel() if rows else 1
    count = sum(map(len, rows))
    # TorchRL rounds the capacity of a grid up at the first write.
    saved_room, room = (math.ceil(size / row_size) for size in (capacity, storage.max_size))
    # Where a full storage continues to write depends on its capacity.
    if count > room or (saved_room != room and count == min(saved_room, room)):
        raise ValueError(
            f"The state holds {length} rows of a storage with the capacity {capacity}, but this "
            f"storage has the capacity {storage.max_size}: construct it with the same capacity."
        )
    present = stored_rows(storage)
    if not rows or present is None:
        return
    known = _schema(present, storage.ndim)
    for saved in (_schema(piece, storage.ndim) for piece in rows):
        for key in sorted(saved.keys() | known.keys(), key=str):
            if saved.get(key) != known.get(key):
                raise ValueError(
                    f"The saved entry {key!r} is {saved.get(key, 'missing')}, but the stored one "
                    f"is {known.get(key, 'missing')}: load the state into a buffer with the same "
                    "entries."
                )


def _schema(rows: TensorDictBase, ndim: int) -> dict[Any, str]:
    return {
        key: f"{str(entry.dtype).removeprefix('torch.')}{list(entry.shape[ndim:])}"
        if isinstance(entry, Tensor)
        else "no tensor"
        for key, entry in rows.items(True, True, is_leaf=is_leaf_nontensor)
    }
