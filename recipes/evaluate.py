"""Evaluates a saved policy of a run, finished or not.

python recipes/evaluate.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0 episodes=20 video=true
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError, counted
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program, quiet_torchrl
from vmfer_recipes.config.saved import read_run

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
    saved, task = read_run(run_dir)
    goals, dataset = "her_ratio" in saved["replay"], saved.get("dataset")
    # Imported here to keep --help and error messages fast.
    from vmfer_recipes.agent.networks import load_policy_of_run
    from vmfer_recipes.environments.make import make_environment
    from vmfer_recipes.offline.scores import reference_returns
    from vmfer_recipes.run.evaluation import evaluate, record_video

    quiet_torchrl()
    trained = load_policy_of_run(run_dir, options.policy)
    env = make_environment(task, options.seed, goals)
    policy = _for_recipes(trained, env, goals)
    print(f"Evaluating {trained.source}, step {trained.step}, on {task.name}.", flush=True)
    result = evaluate(policy, env, options.episodes, options.seed, max_steps=options.max_eval_steps)
    success = "" if result.success_rate is None else f", success rate {result.success_rate:.2f}"
    print(
        f"Return {result.return_mean:.1f} ± {result.return_std:.1f} over "
        f"{counted(options.episodes, 'episode')} of {result.episode_length:.0f} steps on "
        f"average{success}."
    )
    if reference := reference_returns(dataset, task):
        print(reference.describe(result))
    if options.video:
        file, most = run_dir / "video.mp4", options.max_eval_steps
        print(f"Video: {record_video(policy, task, options.seed, file, goals, most)}")


def _for_recipes(trained: Policy, env: Environment, goals: bool) -> TensorDictModule:
    """The policy for an environment of the recipes, whose actions lie in [-1, 1]."""
    import torch
    from tensordict.nn import TensorDictModule

    keys = ["observation", "desired_goal"] if goals else ["observation"]
    seen = sum(env.observation_spec[key].shape[-1] for key in keys)
    for name, needed, size in (
        ("observations", trained.observation_size, seen),
        ("actions", trained.action_size, env.action_spec.shape[-1]),
    ):
        if size != needed:
            raise UserError(
                f"{trained.source} needs {name} of size {needed}, but the environment in "
                f"config.yaml has size {size}: restore the files of the run."
            )
    return TensorDictModule(
        lambda *parts: trained.unit_action(torch.cat(parts, -1)), keys, ["action"]
    )


if __name__ == "__main__":
    main()
