"""An index of the slots of a ring buffer that hold the steps of each episode."""

from __future__ import annotations

from array import array
from typing import Literal

import numpy as np

Strategy = Literal["future", "final", "episode"]


class EpisodeIndex:
    """Finds the live steps of an episode, at a cost independent of the buffer size.

    An episode consists of the steps with one trajectory number, up to and including a step that
    is done, or up to the next step that begins an episode. Steps must be written round-robin: slot
    by slot from 0, and again from 0 once the ring buffer is full.

    The slots of each episode are in one array, in the order of its steps. Overwriting a step
    removes the oldest step of its episode, and halves an array that is mostly unused.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Removes all steps."""
        # For each slot: its episode, -1 for none, and the number of its step in the episode.
        self._episode_of, self._number_of = array("q"), array("q")
        # For each episode: the slots of its steps from the number `_first` on, the number of the
        # oldest live step, and one past that of the newest.
        self._slots: list[array[int]] = []
        self._first, self._oldest, self._end = array("q"), array("q"), array("q")
        self._trajectory: list[int] = []
        self._unused: list[int] = []  # the episodes without live steps
        self._unfinished: dict[int, int] = {}  # the episode that a trajectory continues

    def __len__(self) -> int:
        return len(self._episode_of)

    def draw(self, slots: np.ndarray, uniform: np.ndarray, strategy: Strategy) -> np.ndarray:
        """Draws, for each slot, a slot of the same episode.

        ``uniform`` has a random number in [0, 1) for each. The strategy ``"future"`` draws the same
        or a later step, ``"episode"`` any live step, ``"final"`` the newest one.
        """
        episodes = _at(self._episode_of, slots)
        end = _at(self._end, episodes)
        if strategy == "future":
            lowest = _at(self._number_of, slots)
        else:
            lowest = end - 1 if strategy == "final" else _at(self._oldest, episodes)
        places = lowest + (uniform * (end - lowest)).astype(np.int64) - _at(self._first, episodes)
        chosen = zip(episodes.tolist(), places.tolist(), strict=True)
        return np.array([self._slots[episode][place] for episode, place in chosen], np.int64)

    def windows(self, slots: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The slots ``[n, length]`` of windows of steps, and the numbers of steps in them, ``[n]``.

        A window starts at each of the ``slots``. It ends early at the end of the episode or at the
        newest step; the last slot is then repeated.
        """
        if length == 1:
            return slots[:, None], np.ones(len(slots), np.int64)
        episodes = _at(self._episode_of, slots)
        first, end = _at(self._first, episodes), _at(self._end, episodes)
        places = _at(self._number_of, slots)[:, None] + np.arange(length)
        places = np.minimum(places, end[:, None] - 1) - first[:, None]
        chosen = zip(episodes.tolist(), places.tolist(), strict=True)
        windows = [[self._slots[episode][place] for place in row] for episode, row in chosen]
        return np.array(windows, np.int64), places[:, -1] - places[:, 0] + 1

    def episode(self, slot: int) -> np.ndarray:
        """The live slots of the episode that ``slot`` belongs to, in the order of its steps."""
        episode = self._episode_of[slot]
        num_overwritten = self._oldest[episode] - self._first[episode]
        return np.array(self._slots[episode][num_overwritten:], np.int64)

    def previous(self, slots: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
        """The slot of the step before each step that is about to be added.

        It is the last step of the same trajectory; -1 where there is none, or where it ended an
        episode before this call.
        """
        found: list[int] = []
        last: dict[int, int] = {}
        for slot, number in zip(slots.tolist(), trajectory.tolist(), strict=True):
            if number not in last:
                episode = self._unfinished.get(number)
                last[number] = -1 if episode is None else self._slots[episode][-1]
            found.append(last[number])
            last[number] = slot
        return np.array(found, np.int64)

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
        begins = np.zeros(len(slots), np.bool_) if begins is None else begins
        missing = max(0, int(slots.max(initial=-1)) + 1 - len(self))
        self._episode_of.extend([-1] * missing)
        self._number_of.extend([-1] * missing)
        columns = (slots.tolist(), trajectory.tolist(), done.tolist(), begins.tolist())
        for slot, number, is_last, is_first in zip(*columns, strict=True):
            self._overwrite(slot)
            if is_first or number not in self._unfinished:
                self._begin(number)
            episode = self._unfinished[number]
            self._episode_of[slot], self._number_of[slot] = episode, self._end[episode]
            self._slots[episode].append(slot)
            self._end[episode] += 1
            if is_last:
                del self._unfinished[number]

    def _begin(self, trajectory: int) -> None:
        """Begins an episode of a trajectory."""
        if self._unused:
            episode = self._unused.pop()
        else:
            episode = len(self._slots)
            self._slots.append(array("q"))
            self._trajectory.append(trajectory)
            for numbers in (self._first, self._oldest, self._end):
                numbers.append(0)
        self._trajectory[episode] = trajectory
        self._unfinished[trajectory] = episode

    def _overwrite(self, slot: int) -> None:
        """Removes the step in a slot, if there is one: the oldest live step of its episode."""
        episode = self._episode_of[slot]
        if episode < 0:
            return
        self._oldest[episode] += 1
        oldest = self._oldest[episode]
        num_overwritten = oldest - self._first[episode]
        if 2 * num_overwritten > len(self._slots[episode]):
            del self._slots[episode][:num_overwritten]
            self._first[episode] = oldest
        if oldest == self._end[episode]:
            self._unused.append(episode)
            # The collector may have abandoned the trajectory.
            if self._unfinished.get(self._trajectory[episode]) == episode:
                del self._unfinished[self._trajectory[episode]]


def _at(numbers: array[int], index: np.ndarray) -> np.ndarray:
    return np.frombuffer(numbers, np.int64)[index]
