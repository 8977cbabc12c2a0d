"""A film of one episode."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from vmfer_recipes.training.environments import make_environment, tensors
from vmfer_recipes.training.errors import UserError, first_line

__all__ = ["record_video"]


@torch.no_grad()
def record_video(
    policy: TensorDictModuleBase, name: str, seed: int, path: Path, goals: bool = False
) -> Path:
    """Records one episode as an mp4 file."""
    # MuJoCo chooses its renderer when it is first imported to draw: without a screen, EGL.
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import imageio.v3 as imageio

        env = make_environment(name, seed, goals, render_mode="rgb_array")._env
        observation, _ = env.reset(seed=seed)
        frames, over = [env.render()], False
        while not over:
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                action = policy(TensorDict(tensors(observation)))["action"].numpy()
            observation, _, terminated, truncated, _ = env.step(action)
            frames.append(env.render())
            over = terminated or truncated
        fps = env.metadata.get("render_fps", 30)
        imageio.imwrite(path, frames, fps=fps, plugin="pyav", codec="h264")
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"No video could be made ({type(error).__name__}: {first_line(error)}). It "
            "needs a GL backend and an encoder: `apt-get install libegl1 libosmesa6`, then "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa, and `pip install imageio av`."
        ) from error
    return path
