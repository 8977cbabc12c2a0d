"""Control tasks in NumPy: goal reaching in 3 and 6 dimensions, and a planar quadrotor.

Importing this module registers ``GoalReaching3-v0``, ``GoalReaching6-v0`` and
``PlanarQuadrotor-v0`` with Gymnasium. Each class computes any number of members in one call.
:class:`TaskVector` uses this for many environments, with the same bits as one at a time: the
dynamics consist of elementwise arithmetic and square roots, which IEEE 754 rounds exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np


class Task(gym.Env):
    """Base class of the tasks. Episodes are truncated after ``time_limit`` steps.

    Subclasses define pure functions of a state ``[members, size]``, whose last column counts steps.

    Args:
        size: the length of a state.
        observations: the length of an observation.
        actions: the length of an action; every component is in [-1, 1].
    """

    time_limit: ClassVar[int] = 100

    def __init__(self, size: int, observations: int, actions: int) -> None:
        self.state = np.zeros(size)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observations,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (actions,), np.float32)

    def start(self) -> np.ndarray:
        """Draws an initial state from the generator of the environment."""
        raise NotImplementedError

    def advance(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The states after one step, and the rewards ``[members]``."""
        raise NotImplementedError

    def observe(self, state: np.ndarray) -> np.ndarray:
        """The observations ``[members, observations]``."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        self.state[...] = self.start()
        return self.observe(self.state[None])[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes one environment step."""
        actions = np.clip(np.asarray(action, np.float64), -1, 1)[None]
        state, reward = self.advance(self.state[None], actions)
        self.state[...] = state[0]
        is_over = bool(self.state[-1] >= self.time_limit)
        return self.observe(state)[0], float(reward[0]), False, is_over, {}


class TaskVector:
    """Steps several environments of one task in one call.

    The environments keep their generators, and their states become views of one array. Each can
    be reset and saved on its own. Restore saved states before this.

    Args:
        tasks: environments of the same class and size.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._task = tasks[0]
        self._state = np.stack([task.state for task in tasks])
        for task, row in zip(tasks, self._state, strict=True):
            task.state = row

    def step(
        self, actions: np.ndarray, rows: Sequence[int] | slice = slice(None)
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every member, or of those in ``rows``, and resets none.

        Returns:
            observations, rewards, terminations and truncations, each with one row per member.
        """
        actions = np.clip(np.asarray(actions, np.float64), -1, 1)
        state, rewards = self._task.advance(self._state[rows], actions)
        self._state[rows] = state
        truncations = state[:, -1] >= self._task.time_limit
        return self._task.observe(state), rewards, np.zeros(len(state), bool), truncations


def _length(vectors: np.ndarray) -> np.ndarray:
    """The lengths of vectors, added in a fixed order: ``sum`` depends on the layout in memory."""
    total = vectors[:, 0] * vectors[:, 0]
    for column in range(1, vectors.shape[1]):
        total = total + vectors[:, column] * vectors[:, column]
    return np.sqrt(total)


class GoalReaching(Task):
    """A body with drag in a wind flies to a goal and stays there.

    Each actuator also pushes along its neighbor's axis. The wind of an episode is constant and
    observed, as are the offset of the goal and the velocity. The reward is minus the distance to
    the goal and minus a small cost of the action.

    Args:
        dimensions: the dimensions of space, which are also those of the action.
    """

    _step, _force, _drag, _coupling = 0.1, 3.0, 0.8, 0.5

    def __init__(self, dimensions: int = 3) -> None:
        super().__init__(3 * dimensions + 1, 3 * dimensions, dimensions)
        self._size = dimensions

    def start(self) -> np.ndarray:
        """Draws the offset of the goal and the wind. The body is at rest."""
        offset = self.np_random.uniform(-1.5, 1.5, self._size)
        wind = self.np_random.uniform(-0.6, 0.6, self._size)
        return np.concatenate([offset, np.zeros(self._size), wind, [0.0]])

    def advance(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integrates one step of the motion."""
        n = self._size
        offset, velocity, wind = state[:, :n], state[:, n : 2 * n], state[:, 2 * n : 3 * n]
        push = action + self._coupling * np.roll(action, 1, axis=1)
        airflow = wind - velocity
        drag = self._drag * airflow * (1 + _length(airflow))[:, None]
        after = np.empty_like(state)
        after[:, n : 2 * n] = velocity + self._step * (self._force * push + drag)
        after[:, :n] = offset - self._step * after[:, n : 2 * n]
        after[:, 2 * n :] = state[:, 2 * n :]
        after[:, -1] += 1
        effort = _length(action)
        return after, -_length(after[:, :n]) - 0.02 * effort * effort

    def observe(self, state: np.ndarray) -> np.ndarray:
        """The offset of the goal, the velocity and the wind."""
        return state[:, :-1].copy()


class PlanarQuadrotor(Task):
    """A quadrotor in a vertical plane flies to a goal and hovers there.

    The actions are the thrusts of its two rotors; action 0 is hovering. It observes the offset of
    the goal, its velocity, sine and cosine of its angle, and its angular velocity. The reward is
    minus the distance to the goal and minus small costs of tilt, rotation and action.
    """

    _step, _gravity, _thrust, _torque, _drag = 0.05, 9.81, 0.6, 12.0, 0.3

    def __init__(self) -> None:
        super().__init__(8, 7, 2)

    def start(self) -> np.ndarray:
        """Draws the offset of the goal and small velocities. The quadrotor is upright."""
        offset = self.np_random.uniform(-1, 1, 2)
        velocity = self.np_random.uniform(-0.3, 0.3, 3)
        return np.concatenate([offset, velocity[:2], [0.0, 1.0], velocity[2:], [0.0]])

    def advance(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integrates one step of the motion."""
        x, z, vx, vz, sine, cosine, spin, time = state.T
        left, right = action.T
        dt = self._step
        lift = self._gravity * (1 + self._thrust * 0.5 * (left + right))
        spin = spin + dt * (self._torque * 0.5 * (right - left) - 1.5 * spin)
        vx = vx + dt * (-lift * sine - self._drag * vx)
        vz = vz + dt * (lift * cosine - self._gravity - self._drag * vz)
        # Cayley's rotation by spin * dt needs no trigonometric functions.
        half = 0.5 * dt * spin
        scale = 1 / (1 + half * half)
        turn_cosine, turn_sine = (1 - half * half) * scale, 2 * half * scale
        sine, cosine = (
            sine * turn_cosine + cosine * turn_sine,
            cosine * turn_cosine - sine * turn_sine,
        )
        norm = np.sqrt(sine * sine + cosine * cosine)
        after = np.stack(
            [x - dt * vx, z - dt * vz, vx, vz, sine / norm, cosine / norm, spin, time + 1], 1
        )
        effort = left * left + right * right
        costs = 0.1 * (1 - after[:, 5]) + 0.01 * spin * spin + 0.02 * effort
        return after, -_length(after[:, :2]) - costs

    def observe(self, state: np.ndarray) -> np.ndarray:
        """Offset, velocity, sine, cosine and angular velocity."""
        return state[:, :-1].copy()


for _name, _task, _arguments in (
    ("GoalReaching3-v0", GoalReaching, {"dimensions": 3}),
    ("GoalReaching6-v0", GoalReaching, {"dimensions": 6}),
    ("PlanarQuadrotor-v0", PlanarQuadrotor, {}),
):
    if _name not in gym.registry:
        gym.register(_name, f"{__name__}:{_task.__name__}", kwargs=_arguments)
