"""Evaluates a saved policy of a run, finished or not.

python recipes/evaluate.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0 episodes=20 video=true
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program, quiet_torchrl
from vmfer_recipes.config.validation import validate
from vmfer_recipes.run.files import read_config

if TYPE_CHECKING:
    from tensordict.nn import TensorDictModule

    from torchrl_vmfer import Policy
    from vmfer_recipes.environments.make import Environment


@dataclass
class EvaluationConfig(Config):
    """Plays episodes with the policy of a run and prints their return."""

    episodes: int = key(10, "episodes to play", low=1)
    seed: int = key(2_000_000, "seed of the first episode; later episodes count up", low=0)
    policy: str = key(
        "last",
        "policy.pt, or the newest checkpoint of an unfinished run (last); policy_best.pt (best)",
        choices=("last", "best"),
    )
    max_eval_steps: int = key(
        10_000, "steps of the longest episode; a longer one is an error", low=1
    )
    video: bool = key(False, "record the first episode as video.mp4 in the run directory")


@program
def main() -> None:
    """Prints the return of a saved policy."""
    run_dir, options = read_folder_and_options(
        "python recipes/evaluate.py <run_dir>", sys.argv[1:], EvaluationConfig
    )
    config = run_dir / "config.yaml"
    if not config.exists():
        raise UserError(
            f"{run_dir} has no config.yaml: give the directory of a run, such as "
            "runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0."
        )
    cfg = _load_config(config)
    # Imported here to keep --help and error messages fast.
    from vmfer_recipes.agent.networks import load_policy_of_run
    from vmfer_recipes.environments.make import make_environment
    from vmfer_recipes.offline.scores import reference_returns
    from vmfer_recipes.run.evaluation import evaluate, record_video

    quiet_torchrl()
    saved = load_policy_of_run(run_dir, options.policy)
    env = make_environment(cfg.env, options.seed, cfg.goals)
    policy = _for_recipes(saved, env, cfg.goals)
    print(f"Evaluating {saved.source}, step {saved.step}, on {cfg.env.name}.", flush=True)
    result = evaluate(policy, env, options.episodes, options.seed, max_steps=options.max_eval_steps)
    success = "" if result.success_rate is None else f", success rate {result.success_rate:.2f}"
    print(
        f"Return {result.return_mean:.1f} ± {result.return_std:.1f} over "
        f"{counted(options.episodes, 'episode')} of {result.episode_length:.0f} steps on "
        f"average{success}."
    )
    reference = reference_returns(cfg)
    if reference is not None:
        print(reference.describe(result))
    if options.video:
        file, most = run_dir / "video.mp4", options.max_eval_steps
        video = record_video(policy, cfg.env, options.seed, file, cfg.goals, most)
        print(f"Video: {video}")


def _load_config(file: Path) -> SimpleNamespace:
    """The keys of a run that its evaluation needs: ``env``, ``goals`` and ``dataset``."""
    try:
        saved = read_config(file)
        env = EnvConfig(**saved["env"])
        validate(env, "env.")
        goals = saved["replay"]["kind"] == "her"
    except Exception as error:
        raise UserError(
            f"{file} is not the configuration of a run ({first_line(error)})."
        ) from error
    return SimpleNamespace(env=env, goals=goals, dataset=saved.get("dataset"))


def _for_recipes(saved: Policy, env: Environment, goals: bool) -> TensorDictModule:
    """The policy for an environment of the recipes, whose actions lie in [-1, 1]."""
    import torch
    from tensordict.nn import TensorDictModule

    keys = ["observation", "desired_goal"] if goals else ["observation"]
    sizes = {
        "observations": (sum(env.observation_spec[key].shape[-1] for key in keys),),
        "actions": tuple(env.action_spec.shape),
    }
    needed = {"observations": (saved.observation_size,), "actions": (saved.action_size,)}
    for name, size in sizes.items():
        if size != needed[name]:
            raise UserError(
                f"{saved.source} needs {name} of size {needed[name][0]}, but those of the "
                f"environment in config.yaml have size {size[0]}: restore the files of the run."
            )

    def act(*parts: torch.Tensor) -> torch.Tensor:
        return saved.unit_action(torch.cat(parts, -1))

    return TensorDictModule(act, keys, ["action"])


if __name__ == "__main__":
    main()
