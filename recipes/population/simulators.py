"""The environment steps of all members, in one call where this is equal to one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from mujoco.rollout import Rollout

from vmfer_recipes.environments.make import Environment, Guarded
from vmfer_recipes.environments.tasks import Task, TaskVector

# Tasks of MuJoCo whose steps are equal to 1e-10. Ant and Humanoid reach only 1e-6.
BATCHED_TASKS = (
    *("HalfCheetah-v4", "HalfCheetah-v5", "Hopper-v4", "Hopper-v5", "InvertedDoublePendulum-v4"),
    *("InvertedDoublePendulum-v5", "InvertedPendulum-v4", "InvertedPendulum-v5", "Pusher-v5"),
    *("Reacher-v4", "Reacher-v5", "Swimmer-v4", "Swimmer-v5", "Walker2d-v4", "Walker2d-v5"),
)
_LAYERS = (Guarded, gym.wrappers.RescaleAction, gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing)
_STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS

# An observation in single precision, a reward, and whether the episode is terminated or truncated.
Result = tuple[np.ndarray, float, bool, bool]


def make_simulators(envs: Sequence[Environment], is_batched: bool) -> Simulators:
    """The environments of a population.

    Tasks of this package always take their steps in one call, which changes no bit.

    Args:
        envs: environments of one task.
        is_batched: whether the tasks of MuJoCo take their steps in one call, too.
    """
    layers = _layers(envs[0].simulator)
    core = layers.pop()
    if any(type(layer) not in _LAYERS for layer in layers):
        return Simulators(envs)
    if isinstance(core, Task):
        return _Tasks(envs)
    is_served = core.spec is not None and core.spec.id in BATCHED_TASKS
    return _MujocoTasks(envs) if is_batched and is_served else _Cores(envs)


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


class Simulators:
    """Environments that take their steps one after the other."""

    def __init__(self, envs: Sequence[Environment]) -> None:
        self._envs: list[Any] = [env.simulator for env in envs]

    def step(self, chosen: list[int], actions: np.ndarray) -> Callable[[int], Result]:
        """Takes one step of some members.

        Args:
            chosen: the positions of the members.
            actions: an action of each member of the population, in [-1, 1].

        Returns:
            the result of a member as a function of its position. It raises the member's error.
        """
        return lambda i: self._envs[i].step(actions[i].copy())[:4]


class _Cores(Simulators):
    """Environments with only the wrappers of every Gymnasium task, which are not called."""

    def __init__(self, envs: Sequence[Environment]) -> None:
        super().__init__(envs)
        self._cores = [env.unwrapped for env in self._envs]
        limit = gym.wrappers.TimeLimit
        self._limits: list[Any] = [
            next((layer for layer in _layers(env) if isinstance(layer, limit)), None)
            for env in self._envs
        ]
        self._rescale = self._envs[0].env.func
        self._shape = self._envs[0].observation_space.shape

    def step(self, chosen: list[int], actions: np.ndarray) -> Callable[[int], Result]:
        rows = dict(zip(chosen, self._rescale(actions[chosen]), strict=True))
        envs, cores = self._envs, self._cores
        return lambda i: self._result(i, actions[i], envs[i].call(cores[i].step, rows[i]))

    def _result(self, i: int, action: np.ndarray, result: Sequence[Any]) -> Result:
        """What the wrappers of a member make of a result."""
        seen, reward, terminated, truncated = result[:4]
        observation, limit = np.array(seen, np.float32), self._limits[i]
        if not (
            observation.shape == self._shape
            and math.isfinite(observation.dot(observation))  # also not if a square is too large
            and isinstance(reward, float)
            and math.isfinite(reward)
        ):
            self._envs[i].checked((observation, *result[1:4], {}), action)
        if limit is not None:
            limit._elapsed_steps += 1
            truncated = truncated or limit._elapsed_steps >= limit._max_episode_steps
        return observation, float(reward), bool(terminated), bool(truncated)


class _Tasks(_Cores):
    """Tasks of this package."""

    def __init__(self, envs: Sequence[Environment]) -> None:
        super().__init__(envs)
        self._vector = TaskVector(self._cores)

    def step(self, chosen: list[int], actions: np.ndarray) -> Callable[[int], Result]:
        columns = self._vector.step(self._rescale(actions[chosen]), chosen)
        rows = dict(zip(chosen, zip(*columns, strict=True), strict=True))
        return lambda i: self._result(i, actions[i], rows[i])


class _MujocoTasks(_Cores):
    """MuJoCo tasks of Gymnasium, with all substeps but the last in one ``mujoco.rollout``.

    The last one is taken by the environment: a task may read contact forces, or the positions of
    bodies, which are those of the last stage of the integrator. In this substep, the solver starts
    from an older guess than in Gymnasium, because ``mujoco.rollout`` does not return its own.
    """

    def __init__(self, envs: Sequence[Environment]) -> None:
        super().__init__(envs)
        model = self._cores[0].model
        self._rollout, self._scratch = Rollout(nthread=0), [mujoco.MjData(model)]
        self._size, self._substeps = mujoco.mj_stateSize(model, _STATE), self._cores[0].frame_skip

    def step(self, chosen: list[int], actions: np.ndarray) -> Callable[[int], Result]:
        inner, cores = self._rescale(actions[chosen]), [self._cores[i] for i in chosen]
        before = np.empty((len(chosen), self._size))
        for core, row in zip(cores, before, strict=True):
            mujoco.mj_getState(core.model, core.data, row, _STATE)
        states, _ = self._rollout.rollout(
            [core.model for core in cores],
            self._scratch,
            before,
            np.repeat(inner[:, None].astype(np.float64), self._substeps - 1, 1),
            initial_warmstart=np.stack([core.data.qacc_warmstart for core in cores]),
        )
        rows = {i: (inner[row], states[row, -1]) for row, i in enumerate(chosen)}
        return lambda i: self._result(i, actions[i], _finish(self._cores[i], *rows[i]))


def _finish(core: Any, action: np.ndarray, state: np.ndarray) -> Sequence[Any]:
    """The step of Gymnasium's environment, given the state before its last substep."""

    def simulate(control: np.ndarray, _: int) -> None:
        mujoco.mj_setState(core.model, core.data, state, _STATE)
        type(core).do_simulation(core, control, 1)

    core.do_simulation = simulate
    try:
        return core.step(action)[:4]
    finally:
        del core.do_simulation
