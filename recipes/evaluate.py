"""Evaluates the policy of a finished run.

python recipes/evaluate.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0 episodes=20 video=true
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.errors import UserError, first_line
from vmfer_recipes.training.evaluation import evaluate
from vmfer_recipes.training.launch import program, quiet_torchrl
from vmfer_recipes.training.networks import deterministic_actor, gaussian_actor, make_perception
from vmfer_recipes.training.video import record_video

DEFAULTS: dict[str, Any] = {
    "episodes": 10,  # how many to play
    "seed": 2_000_000,  # of the first episode; later episodes count up
    "video": False,  # whether to record the first episode as video.mp4 in the run directory
}


@program
def main() -> None:
    """Prints the return of a saved policy."""
    quiet_torchrl()
    if len(sys.argv) < 2:
        raise UserError("No run given. Usage: python recipes/evaluate.py <run_dir> [video=true]")
    run_dir = Path(sys.argv[1])
    options = _options(sys.argv[2:])
    for name in ("config.yaml", "policy.pt"):
        if not (run_dir / name).exists():
            raise UserError(
                f"{run_dir} has no {name}: give the directory of a finished run, such as "
                "runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0."
            )
    try:
        cfg: Any = OmegaConf.load(run_dir / "config.yaml")
        cfg.device = "cpu"
        make_actor = {"td3": deterministic_actor, "sac": gaussian_actor}[cfg.algorithm]
        name, hidden, goals = cfg.env.name, list(cfg.hidden), cfg.replay.kind == "her"
    except Exception as error:
        raise UserError(
            f"{run_dir / 'config.yaml'} is not the configuration of a run ({first_line(error)})."
        ) from error
    env = make_environment(name, options.seed, goals)
    policy = make_perception(env, cfg).before(make_actor(env, hidden))
    try:
        state = torch.load(run_dir / "policy.pt", weights_only=True, map_location="cpu")
        policy.load_state_dict(state)
    except Exception as error:
        raise UserError(
            f"{run_dir / 'policy.pt'} cannot be read ({first_line(error)}): train the run again."
        ) from error
    result = evaluate(policy, env, options.episodes, options.seed)
    success = "" if result.success_rate is None else f", success rate {result.success_rate:.2f}"
    print(
        f"Return {result.return_mean:.1f} ± {result.return_std:.1f} over {options.episodes} "
        f"episodes of {result.episode_length:.0f} steps on average{success}."
    )
    if options.video:
        video = record_video(policy, name, options.seed, run_dir / "video.mp4", goals)
        print(f"Video: {video}")


def _options(arguments: list[str]) -> DictConfig:
    for argument in arguments:
        if "=" not in argument:
            raise UserError(f"{argument!r} is not an option: write {argument}=value.")
    given = OmegaConf.from_dotlist(arguments)
    for key in map(str, given):
        if key not in DEFAULTS:
            raise UserError(f"There is no option {key}=; the options are {', '.join(DEFAULTS)}.")
    values: dict[str, Any] = DEFAULTS | {str(key): given[key] for key in given}
    options = OmegaConf.create(values)
    for key, low in {"episodes": 1, "seed": 0}.items():
        if type(options[key]) is not int or options[key] < low:
            raise UserError(f"{key} must be a whole number of at least {low}, got {options[key]}.")
    if type(options.video) is not bool:
        raise UserError(f"video must be true or false, got {options.video}.")
    return options


if __name__ == "__main__":
    main()
