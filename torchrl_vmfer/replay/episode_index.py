"""An index of the slots of a ring buffer that hold the steps of each episode."""

from __future__ import annotations

from typing import Literal

import numpy as np

Strategy = Literal["future", "final", "episode"]

_EPISODE = np.dtype(
    [
        ("first", np.int64),  # the position of its oldest live step in the pool
        ("end", np.int64),  # one past its newest step
        ("limit", np.int64),  # one past the last position reserved for it
        ("trajectory", np.int64),
        ("finished", np.bool_),
    ]
)
_PIECE = np.dtype(
    [
        ("start", np.int64),  # among the steps of a call, sorted by trajectory
        ("size", np.int64),
        ("trajectory", np.int64),
        ("finished", np.bool_),  # whether no later step continues it
        ("is_first", np.bool_),  # whether it is the first of its trajectory in the call
        ("continues", np.bool_),  # the unfinished episode of its trajectory, if there is one
        ("episode", np.int64),
    ]
)
_LEAST_ROOM = 64  # positions reserved for an unfinished episode; doubled when they are used up


class EpisodeIndex:
    """Finds the live steps of an episode, at a cost independent of the buffer size.

    The slots of each episode, in the order of its steps, form a block of one large array, the
    pool. The index stores the pool position and the episode of each step, and the bounds of the
    block of each episode. Drawing a goal is then one random position in a block, vectorized over
    rows. Overwriting a step advances the start of its block. An unfinished episode that outgrows
    its block moves to a block of twice the size. When the pool is used up, all live steps are
    copied into a new pool with as much free space as data. The amortized cost is O(1) per written
    step.

    An episode consists of the steps with one trajectory number, up to and including a step that
    is done, or up to the next step that begins an episode. Steps must be written round-robin: slot
    by slot from 0, and again from 0 once the ring buffer is full.

    Attributes:
        cursor: the next slot to be written.
        write_count: the number of writes that the index includes. The owner sets it.

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
        """Removes all steps."""
        self.write_count = 0
        self._start_over()

    def _start_over(self) -> None:
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
        """Draws, for each slot, a slot of the same episode.

        ``uniform`` has a random number in [0, 1) for each. The strategy ``"future"`` draws the same
        or a later step, ``"episode"`` any live step, ``"final"`` the newest one.
        """
        episodes = self._episode_of[slots]
        end = self._episodes["end"][episodes]
        if strategy == "final":
            return self._pool[end - 1]
        is_future = strategy == "future"
        lowest = self._place_of[slots] if is_future else self._episodes["first"][episodes]
        return self._pool[lowest + (uniform * (end - lowest)).astype(np.int64)]

    def episode(self, slot: int) -> np.ndarray:
        """The live slots of the episode that ``slot`` belongs to, in the order of its steps."""
        episode = self._episodes[self._episode_of[slot]]
        return self._pool[episode["first"] : episode["end"]].copy()

    def previous(self, slots: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
        """The slot of the step before each step that is about to be added.

        It is the last step of the same trajectory; -1 where there is none, or where it ended an
        episode before this call.
        """
        order, changes = _by_trajectory(trajectory)
        before = np.roll(slots[order], 1)
        before[changes] = [
            -1 if episode is None else self._pool[self._episodes["end"][episode] - 1]
            for episode in map(self._unfinished.get, trajectory[order][changes].tolist())
        ]
        found = np.empty_like(before)
        found[order] = before
        return found

    def append(
        self,
        slots: np.ndarray,
        trajectory: np.ndarray,
        done: np.ndarray,
        begins: np.ndarray | None = None,
    ) -> None:
        """Adds steps in the order in which they were written; each slot at most once.

        Steps are the last of their episode where they are ``done``. They begin one where
        ``begins``, even if the step before them was not done.
        """
        if len(slots) == 0:
            return
        begins = np.zeros(len(slots), np.bool_) if begins is None else begins
        overwritten = slots[slots < self._length]
        # The ring buffer overwrites the steps of an episode in order, and the last assignment
        # wins: an episode begins after the newest of its overwritten steps.
        self._episodes["first"][self._episode_of[overwritten]] = self._place_of[overwritten] + 1
        self._write(slots, trajectory, done, begins)

    def _write(
        self, slots: np.ndarray, trajectory: np.ndarray, done: np.ndarray, begins: np.ndarray
    ) -> None:
        order, pieces = _pieces(trajectory, done, begins)
        room = self._match(pieces)
        needed = int(room.sum())
        if self._used + needed > len(self._pool) and self._num_episodes:
            self._compact(slots, trajectory, done, begins)
            return
        if self._used + needed > len(self._pool):
            self._pool = np.empty(2 * needed, np.int64)
        self._reserve(max(self._length, int(slots.max()) + 1), self._num_episodes + len(pieces))
        self._allocate(pieces, room)
        self._place(slots[order], pieces)
        self.cursor = int(slots[-1]) + 1

    def _match(self, pieces: np.ndarray) -> np.ndarray:
        """Finds the episodes that pieces continue. Returns the pool space that each piece needs."""
        firsts = np.flatnonzero(pieces["is_first"])
        pieces["episode"] = -1
        pieces["episode"][firsts] = [
            self._unfinished.pop(number, -1) for number in pieces["trajectory"][firsts].tolist()
        ]
        abandoned = (pieces["episode"] >= 0) & ~pieces["continues"]
        self._episodes["finished"][pieces["episode"][abandoned]] = True
        pieces["episode"][abandoned] = -1
        total, fits = pieces["size"].copy(), np.zeros(len(pieces), np.bool_)
        continued = np.flatnonzero(pieces["episode"] >= 0)
        if len(continued):
            known = self._episodes[pieces["episode"][continued]]
            total[continued] += known["end"] - known["first"]
            fits[continued] = known["end"] + pieces["size"][continued] <= known["limit"]
        room = np.where(pieces["finished"], total, np.maximum(2 * total, _LEAST_ROOM))
        room[fits] = 0
        return room

    def _compact(self, *now: np.ndarray) -> None:
        """Writes all live steps and the given ones into a new pool with free space."""
        before = self._live_steps()
        self._start_over()
        self._write(*(np.concatenate(pair) for pair in zip(before, now, strict=True)))

    def _allocate(self, pieces: np.ndarray, room: np.ndarray) -> None:
        """Moves continued episodes that outgrow their blocks, and adds new episodes."""
        begin = self._used + np.cumsum(room) - room
        self._used += int(room.sum())
        for piece in np.flatnonzero((pieces["episode"] >= 0) & (room > 0)).tolist():
            self._move(pieces["episode"][piece], begin[piece], room[piece])
        new = np.flatnonzero(pieces["episode"] < 0)
        pieces["episode"][new] = self._num_episodes + np.arange(len(new))
        self._num_episodes += len(new)
        entries = np.empty(len(new), _EPISODE)
        entries["first"] = entries["end"] = begin[new]
        entries["limit"] = begin[new] + room[new]
        entries["trajectory"] = pieces["trajectory"][new]
        self._episodes[pieces["episode"][new]] = entries

    def _place(self, slots: np.ndarray, pieces: np.ndarray) -> None:
        """Appends the slots of each piece to the block of its episode."""
        episode, size, finished = pieces["episode"], pieces["size"], pieces["finished"]
        place = np.arange(len(slots))
        place += np.repeat(self._episodes["end"][episode] - pieces["start"], size)
        self._pool[place] = slots
        self._place_of[slots] = place
        self._episode_of[slots] = np.repeat(episode, size)
        self._episodes["end"][episode] += size
        self._episodes["finished"][episode] = finished
        open_trajectories = pieces["trajectory"][~finished].tolist()
        self._unfinished.update(zip(open_trajectories, episode[~finished].tolist(), strict=True))

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

    def _live_steps(self) -> tuple[np.ndarray, ...]:
        """The live steps, as arguments for appending them to an empty index."""
        slots = (self.cursor + np.arange(self._length)) % max(self._length, 1)
        place, episodes = self._place_of[slots], self._episodes[self._episode_of[slots]]
        done = episodes["finished"] & (place == episodes["end"] - 1)
        live = place >= episodes["first"]
        return slots[live], episodes["trajectory"][live], done[live], np.zeros(live.sum(), bool)


def _by_trajectory(trajectory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of steps by trajectory, and which of them are then the first of theirs."""
    order = np.argsort(trajectory, kind="stable")
    ordered = trajectory[order]
    changes = np.ones(len(order), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return order, changes


def _pieces(
    trajectory: np.ndarray, done: np.ndarray, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sorts steps by trajectory and splits them, in this order, into pieces of one episode each."""
    order, changes = _by_trajectory(trajectory)
    trajectory, done, begins = trajectory[order], done[order], begins[order]
    starts = changes | begins
    starts[1:] |= done[:-1]
    start = np.flatnonzero(starts)
    pieces = np.empty(len(start), _PIECE)
    pieces["start"] = start
    pieces["size"] = np.diff(start, append=len(order))
    pieces["trajectory"] = trajectory[start]
    pieces["is_first"] = changes[start]
    pieces["continues"] = ~begins[start]
    pieces["finished"] = done[start + pieces["size"] - 1]
    pieces["finished"][:-1] |= ~pieces["is_first"][1:]
    return order, pieces


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
