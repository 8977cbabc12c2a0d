"""Which slots of a ring of transitions hold the steps of one episode."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

__all__ = ["EpisodeIndex", "Strategy"]

Strategy = Literal["future", "final", "episode"]

_EPISODE = np.dtype(
    [
        ("first", np.int64),  # where its oldest live step stands in the pool
        ("end", np.int64),  # one past its newest step
        ("limit", np.int64),  # one past the last place that is kept for it
        ("trajectory", np.int64),
        ("finished", np.bool_),
    ]
)
_LEAST_ROOM = 64  # places for an episode that goes on; it doubles when they are used up


class EpisodeIndex:
    """Finds the other live steps of a step's episode, at a cost that no length matters to.

    The slots of each episode stand in the order of its steps in a block of one large array, the
    pool. A step knows its place there and its episode, an episode knows where its block begins
    and ends. So a goal is drawn by one random place in the block, for any number of rows at
    once. Overwriting a step moves the beginning of its block; an unfinished episode that
    outgrows its block moves to one of twice the size; when the pool is used up everything is
    written anew into one with as much free space as data. All of it is O(1) per written step,
    on average.

    An episode is what is written under one trajectory number up to and including a step that
    is done. Steps must be written round robin: slot after slot, from 0, and from 0 again once
    the ring is full.

    Attributes:
        cursor: the slot that comes next.
        write_count: for the owner's use: how many writes the index knows of.

    Examples:
        >>> index = EpisodeIndex()
        >>> trajectory = np.array([7, 8, 7, 8, 7])
        >>> index.append(np.arange(5), trajectory, np.array([0, 0, 0, 1, 0], bool))
        >>> index.episode(2), index.episode(1)
        (array([0, 2, 4]), array([1, 3]))
        >>> index.append(np.array([0]), np.array([7]), np.array([True]))
        >>> index.episode(2)
        array([2, 4, 0])
        >>> index.draw(np.array([4, 1]), np.array([0.0, 0.9]), "future")
        array([4, 3])
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all steps."""
        self.write_count = 0
        self._reset()

    def _reset(self) -> None:
        self._length = 0
        self.cursor = 0
        self._episode_of: np.ndarray = np.empty(0, np.int64)
        self._place_of: np.ndarray = np.empty(0, np.int64)
        self._pool: np.ndarray = np.empty(0, np.int64)
        self._used = 0
        self._episodes: np.ndarray = np.empty(0, _EPISODE)
        self._num_episodes = 0
        self._unfinished: dict[int, int] = {}

    def __len__(self) -> int:
        return self._length

    def draw(self, slots: np.ndarray, uniform: np.ndarray, strategy: Strategy) -> np.ndarray:
        """Draws for each slot one of its own episode.

        Args:
            slots: live slots.
            uniform: as many random numbers in [0, 1).
            strategy: ``"future"`` for a step not before its own, ``"episode"`` for any live
                step, ``"final"`` for the newest one.

        Returns:
            the slots drawn.
        """
        episodes = self._episode_of[slots]
        end = self._episodes["end"][episodes]
        if strategy == "final":
            return self._pool[end - 1]
        if strategy == "future":
            lowest = self._place_of[slots]
        elif strategy == "episode":
            lowest = self._episodes["first"][episodes]
        else:
            raise ValueError(f"strategy must be one of {get_args(Strategy)}, got {strategy!r}.")
        return self._pool[lowest + (uniform * (end - lowest)).astype(np.int64)]

    def episode(self, slot: int) -> np.ndarray:
        """The live slots of the episode that ``slot`` belongs to, in the order of its steps."""
        episode = self._episodes[self._episode_of[slot]]
        return self._pool[episode["first"] : episode["end"]].copy()

    def append(self, slots: np.ndarray, trajectory: np.ndarray, done: np.ndarray) -> None:
        """Takes over steps in the order in which they were written.

        Args:
            slots: where they are; each slot at most once.
            trajectory: the number of the trajectory of each.
            done: whether each is the last of its episode.
        """
        if len(slots) == 0:
            return
        overwritten = slots[slots < self._length]
        # The ring overwrites the steps of an episode in their order, and the last assignment
        # wins: an episode begins after the newest of its overwritten steps.
        self._episodes["first"][self._episode_of[overwritten]] = self._place_of[overwritten] + 1
        self._write(slots, trajectory, done)

    def _write(self, slots: np.ndarray, trajectory: np.ndarray, done: np.ndarray) -> None:
        # Pieces: consecutive steps of one episode, trajectory by trajectory.
        order = np.argsort(trajectory, kind="stable")
        row_trajectory, row_done = trajectory[order], done[order]
        changes = np.empty(len(slots), np.bool_)
        changes[0] = True
        np.not_equal(row_trajectory[1:], row_trajectory[:-1], out=changes[1:])
        begins = changes.copy()
        begins[1:] |= row_done[:-1]
        start = np.flatnonzero(begins)
        size = np.diff(start, append=len(slots))
        finished = row_done[start + size - 1]
        number = row_trajectory[start]

        # The first piece of a trajectory may go on with an episode of an earlier call.
        episode = np.full(len(start), -1)
        first_of_trajectory = np.flatnonzero(changes[start])
        episode[first_of_trajectory] = [
            self._unfinished.pop(key, -1) for key in number[first_of_trajectory].tolist()
        ]
        going_on = np.flatnonzero(episode >= 0)
        total, fits = size.copy(), np.zeros(len(start), np.bool_)
        if len(going_on):
            known = self._episodes[episode[going_on]]
            total[going_on] += known["end"] - known["first"]
            fits[going_on] = known["end"] + size[going_on] <= known["limit"]
        room = np.where(finished, total, np.maximum(2 * total, _LEAST_ROOM))
        room[fits] = 0

        needed = int(room.sum())
        if self._used + needed > len(self._pool):
            if self._num_episodes:
                before = self._record()
                self._reset()
                now = (slots, trajectory, done)
                self._write(*(np.concatenate(pair) for pair in zip(before, now, strict=True)))
                return
            self._pool = np.empty(2 * needed, np.int64)

        begin = self._used + np.cumsum(room) - room
        self._used += needed
        self._reserve(max(self._length, int(slots.max()) + 1), self._num_episodes + len(start))
        for piece in going_on[~fits[going_on]].tolist():
            self._move(episode[piece], begin[piece], room[piece])
        fresh = np.flatnonzero(episode < 0)
        episode[fresh] = self._num_episodes + np.arange(len(fresh))
        self._num_episodes += len(fresh)
        entries = np.empty(len(fresh), _EPISODE)
        entries["first"] = entries["end"] = begin[fresh]
        entries["limit"] = begin[fresh] + room[fresh]
        entries["trajectory"] = number[fresh]
        self._episodes[episode[fresh]] = entries

        place = np.arange(len(slots)) + np.repeat(self._episodes["end"][episode] - start, size)
        slots_in_order = slots[order]
        self._pool[place] = slots_in_order
        self._place_of[slots_in_order] = place
        self._episode_of[slots_in_order] = np.repeat(episode, size)
        self._episodes["end"][episode] += size
        self._episodes["finished"][episode] = finished
        goes_on = ~finished
        self._unfinished.update(
            zip(number[goes_on].tolist(), episode[goes_on].tolist(), strict=True)
        )
        self.cursor = int(slots[-1]) + 1

    def _reserve(self, length: int, num_episodes: int) -> None:
        self._length = length
        self._episode_of = _grown(self._episode_of, length)
        self._place_of = _grown(self._place_of, length)
        self._episodes = _grown(self._episodes, num_episodes)

    def _move(self, episode: int, begin: int, room: int) -> None:
        entry = self._episodes[episode]
        slots = self._pool[entry["first"] : entry["end"]]
        end = begin + len(slots)
        self._pool[begin:end] = slots
        self._place_of[slots] = np.arange(begin, end)
        entry["first"], entry["end"], entry["limit"] = begin, end, begin + room

    def _record(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The live steps, as they would have to be appended to an empty index."""
        slots = (self.cursor + np.arange(self._length)) % max(self._length, 1)
        place, episodes = self._place_of[slots], self._episodes[self._episode_of[slots]]
        done = episodes["finished"] & (place == episodes["end"] - 1)
        live = place >= episodes["first"]
        return slots[live], episodes["trajectory"][live], done[live]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors and numbers: the live steps in the order of writing."""
        _, trajectory, done = self._record()
        return {
            "write_count": self.write_count,
            "cursor": self.cursor,
            "trajectory": torch.from_numpy(trajectory),
            "done": torch.from_numpy(done),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a copy of a state. A state that does not fit changes nothing."""
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"The state of an EpisodeIndex lacks {', '.join(sorted(missing))}.")
        cursor = int(state_dict["cursor"])
        trajectory, done = (_vector(state_dict, name) for name in ("trajectory", "done"))
        length = len(trajectory)
        if len(done) != length or not 0 <= cursor <= length:
            raise ValueError(
                f"The state of an EpisodeIndex holds {length} trajectory numbers, {len(done)} "
                f"done flags and the cursor {cursor}, which do not fit together."
            )
        self.clear()
        self.append((cursor + np.arange(length)) % max(length, 1), trajectory, done)
        self.write_count = int(state_dict["write_count"])


def _vector(state_dict: dict[str, Any], name: str) -> np.ndarray:
    value = state_dict[name]
    if not (isinstance(value, Tensor) and value.ndim == 1 and not value.is_floating_point()):
        raise ValueError(f"{name} of the state of an EpisodeIndex is not a vector: {value!r}.")
    return value.cpu().numpy().astype(np.bool_ if name == "done" else np.int64)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
