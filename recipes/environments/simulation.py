"""What is saved of MuJoCo's simulations and models."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch

SIMULATORS = (mujoco.MjData, mujoco.MjModel)

# MuJoCo's definition of a state (the first two lines) omits the positions, velocities and forces of
# the last step, which affect the rewards and observations of the next step.
_SIMULATION = (
    *("time", "qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "plugin_state"),
    *("qacc", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "subtree_com", "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext"),
    *("qfrc_actuator", "actuator_force", "sensordata"),
)


def simulation_state(value: Any) -> dict[str, torch.Tensor]:
    """Copies the state of a simulation, or what a task may change in a model."""
    return {key: torch.from_numpy(np.array(getattr(*at))) for key, at in _fields(value).items()}


def load_simulation(value: Any, saved: dict[str, torch.Tensor]) -> None:
    """Restores a saved state."""
    for name, at in _fields(value).items():
        setattr(*at, saved[name].numpy())  # MuJoCo copies the values into its own arrays


def _fields(value: Any) -> dict[str, tuple[Any, str]]:
    """The fields to save of a simulation, or of a model, whose bodies and masses a task may change.

    Meshes, textures and their search trees are left out.
    """
    if isinstance(value, mujoco.MjData):
        return {name: (value, name) for name in _SIMULATION}
    fields = {"timestep": (value.opt, "timestep")}
    for owner, prefix in ((value, ""), (value.opt, "opt.")):
        for name in dir(owner):
            array = None if name.startswith(("_", "bvh", "oct")) else getattr(owner, name)
            is_terrain = name == "hfield_data"  # float32, like meshes and textures
            if isinstance(array, np.ndarray) and (array.dtype == np.float64 or is_terrain):
                fields[f"{prefix}{name}"] = (owner, name)
    return fields
