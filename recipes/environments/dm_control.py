"""The tasks of DeepMind's Control Suite as Gymnasium environments."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from vmfer_recipes.config.errors import UserError, did_you_mean


class ControlSuite(gym.Env):
    """A task of the Control Suite, such as ``cheetah-run`` or ``cheetah/run``.

    Its observation is the concatenation of the task's observations. An episode is terminated if the
    task ends it with the discount 0, and truncated if it ends by its time limit. ``kwargs`` are
    those of ``dm_control.suite.load``, such as ``task_kwargs={"time_limit": 5}``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, name: str, render_mode: str | None = None, **kwargs: Any) -> None:
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # read at the import
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from dm_control import suite
        except Exception as error:
            raise UserError(
                f"env.backend=dm_control cannot be used ({type(error).__name__}: {error}): install "
                "it with pip install '.[dm-control]'."
            ) from error
        tasks = {"-".join(names): names for names in suite.ALL_TASKS}
        task_name = re.sub("[/:]", "-", name)
        if task_name not in tasks:
            hint = did_you_mean(task_name, tasks, "One of them is cheetah-run.")
            raise UserError(f"The Control Suite has no task {name!r}. {hint}")
        self._suite = suite.load(*tasks[task_name], **kwargs)
        self.task = self._suite.task
        self._remember_simulation()
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_fps": round(1 / self._suite.control_timestep())}
        actions = self._suite.action_spec()
        self.action_space = gym.spaces.Box(
            np.broadcast_to(actions.minimum, actions.shape),
            np.broadcast_to(actions.maximum, actions.shape),
            dtype=actions.dtype.type,
        )
        size = sum(int(np.prod(spec.shape)) for spec in self._suite.observation_spec().values())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def _remember_simulation(self) -> None:
        """Keeps the simulation as attributes, so that a checkpoint includes it."""
        physics = self._suite.physics
        self.model, self.data = physics.model.ptr, physics.data.ptr

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.task.random.seed(seed % 2**32)
        observation = _flat(self._suite.reset().observation)
        self._remember_simulation()
        return observation, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes one environment step."""
        result = self._suite.step(action)
        terminated = result.last() and result.discount == 0
        truncated = result.last() and not terminated
        return _flat(result.observation), float(result.reward), terminated, truncated, {}

    def render(self) -> np.ndarray:
        """The picture of camera 0."""
        return self._suite.physics.render(480, 640, camera_id=0)


def _flat(observation: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in observation.values()])
