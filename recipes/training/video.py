"""A video of one episode."""

from __future__ import annotations

import os
from pathlib import Path

from tensordict.nn import TensorDictModuleBase

from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.evaluation import play_episode
from vmfer_recipes.training.options import EnvConfig

__all__ = ["record_video"]


def record_video(
    policy: TensorDictModuleBase, cfg: EnvConfig, seed: int, path: Path, goals: bool = False
) -> Path:
    """Records one episode as an mp4 file."""
    # MuJoCo selects its renderer at the first import: use EGL without a display.
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import imageio.v3 as imageio

        simulator = make_environment(cfg, seed, goals, render_mode="rgb_array").simulator
        frames: list = []
        play_episode(policy, simulator, seed, lambda step: frames.append(simulator.render()))
        fps = simulator.metadata.get("render_fps", 30)
        imageio.imwrite(path, frames, fps=fps, plugin="pyav", codec="h264")
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"No video could be recorded ({type(error).__name__}: {first_line(error)}). It "
            "needs a GL backend and an encoder: `apt-get install libegl1 libosmesa6`, then "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa, and `pip install imageio av`."
        ) from error
    return path
