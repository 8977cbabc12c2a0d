"""A video of one episode."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tensordict.nn import TensorDictModuleBase
from tqdm import tqdm

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.run.evaluation import play_episode

__all__ = ["record_video"]


def record_video(
    policy: TensorDictModuleBase,
    cfg: EnvConfig,
    seed: int,
    path: Path,
    goals: bool = False,
    max_steps: int = 10_000,
) -> Path:
    """Records one episode as an mp4 file, with a bar over its frames."""
    # MuJoCo selects its renderer at the first import: use EGL without a display.
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    unfinished = path.with_stem(f"{path.stem}.unfinished")  # the ending tells the format
    try:
        import imageio.v3 as imageio

        simulator = make_environment(cfg, seed, goals, render_mode="rgb_array").simulator
        limit = simulator.spec.max_episode_steps if simulator.spec else None
        with (
            imageio.imopen(unfinished, "w", plugin="pyav") as video,
            tqdm(
                desc="Recording",
                total=limit and limit + 1,
                unit="frame",
                mininterval=0.2 if sys.stderr.isatty() else 30,
            ) as bar,
        ):
            video.init_video_stream("h264", fps=simulator.metadata.get("render_fps", 30))

            # Encoded one by one: a long episode does not fit into memory.
            def add_frame(step: dict[str, Any]) -> None:
                video.write_frame(np.asarray(simulator.render()))
                bar.update()

            play_episode(policy, simulator, seed, add_frame, max_steps)
        unfinished.replace(path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"No video could be recorded ({type(error).__name__}: {first_line(error)}). It "
            "needs a GL backend and an encoder: `apt-get install libegl1 libosmesa6`, then "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa, and `pip install imageio av`."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path
