"""The tasks of DeepMind's Control Suite as Gymnasium environments."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from vmfer_recipes.config.errors import UserError, did_you_mean
from vmfer_recipes.environments.state import load_simulation, simulation_state


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

    def _simulation(self) -> dict[str, Any]:
        physics = self._suite.physics
        return {"model": physics.model.ptr, "data": physics.data.ptr}

    def state_dict(self) -> dict[str, Any]:
        """The simulation, and the attributes of this object, of the suite's and of the task."""
        parts = (self, self._suite, self.task)
        attributes = [
            {name: value for name, value in vars(part).items() if id(value) not in map(id, parts)}
            for part in parts
        ]
        return {**self._simulation(), "attributes": attributes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes within an episode. The simulation has been restored in place."""
        for part, values in zip((self, self._suite, self.task), state["attributes"], strict=True):
            vars(part).update(values)
        # A step of dm_control ends with mj_step1, whose results its next step uses.
        model, data = self._simulation().values()
        saved = simulation_state(data)
        mujoco.mj_step1(model, data)
        load_simulation(data, saved)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.task.random.seed(seed % 2**32)
        return _flat(self._suite.reset().observation), {}

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
