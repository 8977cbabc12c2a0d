"""Evaluates the policy of a finished run.

python recipes/evaluate.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0 episodes=20 video=true
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict.nn import TensorDictModuleBase

from vmfer_recipes.training.command_line import read_folder_and_options
from vmfer_recipes.training.environments import Environment, make_environment
from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.evaluation import evaluate
from vmfer_recipes.training.keys import Config, key, validate
from vmfer_recipes.training.launch import program, quiet_torchrl
from vmfer_recipes.training.networks import deterministic_actor, gaussian_actor
from vmfer_recipes.training.options import EnvConfig
from vmfer_recipes.training.perception import make_perception
from vmfer_recipes.training.video import record_video

_ACTORS = {"td3": deterministic_actor, "sac": gaussian_actor}


@dataclass
class EvaluationConfig(Config):
    """The options of the evaluation."""

    episodes: int = key(10, "episodes to play", low=1)
    seed: int = key(2_000_000, "seed of the first episode; later episodes count up", low=0)
    video: bool = key(False, "record the first episode as video.mp4 in the run directory")


@program
def main() -> None:
    """Prints the return of a saved policy."""
    quiet_torchrl()
    run_dir, options = read_folder_and_options(
        "python recipes/evaluate.py <run_dir>", sys.argv[1:], EvaluationConfig
    )
    for name in ("config.yaml", "policy.pt"):
        if not (run_dir / name).exists():
            raise UserError(
                f"{run_dir} has no {name}: give the directory of a finished run, such as "
                "runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0."
            )
    cfg, env_cfg = _load_config(run_dir / "config.yaml")
    goals = cfg.replay.kind == "her"
    env = make_environment(env_cfg, options.seed, goals)
    policy = _load_policy(run_dir / "policy.pt", env, cfg)
    result = evaluate(policy, env, options.episodes, options.seed)
    success = "" if result.success_rate is None else f", success rate {result.success_rate:.2f}"
    print(
        f"Return {result.return_mean:.1f} ± {result.return_std:.1f} over {options.episodes} "
        f"episodes of {result.episode_length:.0f} steps on average{success}."
    )
    if options.video:
        video = record_video(policy, env_cfg, options.seed, run_dir / "video.mp4", goals)
        print(f"Video: {video}")


def _load_config(file: Path) -> tuple[Any, EnvConfig]:
    """The configuration of a run, for the CPU, and that of its environment."""
    try:
        cfg: Any = OmegaConf.load(file)
        cfg.device = "cpu"
        # Read now, so that a missing key is reported here.
        _ = _ACTORS[cfg.algorithm], list(cfg.hidden), cfg.replay.kind
        env_cfg = EnvConfig(**OmegaConf.to_object(cfg.env))  # type: ignore[arg-type]
        validate(env_cfg, "env.")
    except Exception as error:
        raise UserError(
            f"{file} is not the configuration of a run ({first_line(error)})."
        ) from error
    return cfg, env_cfg


def _load_policy(file: Path, env: Environment, cfg: Any) -> TensorDictModuleBase:
    """The policy that a run has saved."""
    actor = _ACTORS[cfg.algorithm](env, list(cfg.hidden))
    policy = make_perception(env, cfg).before(actor)
    try:
        policy.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    except Exception as error:
        raise UserError(
            f"{file} cannot be read ({first_line(error)}): train the run again."
        ) from error
    return policy


if __name__ == "__main__":
    main()
