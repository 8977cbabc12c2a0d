"""Trains agents of Stable-Baselines3 and sb3-contrib, and evaluates them as the recipes do.

The networks, learning rates, batches and numbers of critics are those of our recipe of the same
name; the options set what depends on the task. Writes ``eval.csv`` in the format of a run: ten
episodes without exploration every 5,000 steps, with the same seeds. Requires
``pip install '.[bench]'``.

    python benchmarks/peers.py tqc --env Hopper-v4 --seed 0 --steps 50000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from vmfer_recipes.run.evaluation import Evaluation, evaluate
from vmfer_recipes.run.session import EVALUATION_SEED
from vmfer_recipes.run.tables import Table

EVAL_INTERVAL, EVAL_EPISODES = 5000, 10


def make_model(algorithm: str, env: gym.Env, options: argparse.Namespace) -> Any:
    """The algorithm with the networks and learning rates of our recipe."""
    import sb3_contrib
    import stable_baselines3

    settings: dict[str, Any] = {
        "td3": {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [256, 256]}},
        "sac": {"learning_rate": 3e-4, "policy_kwargs": {"net_arch": [256, 256]}},
        "tqc": {
            "learning_rate": 3e-4,
            "top_quantiles_to_drop_per_net": options.drop,
            "policy_kwargs": {
                "net_arch": {"pi": [256, 256], "qf": options.critic_hidden},
                "n_critics": 5,
                "n_quantiles": 25,
            },
        },
    }[algorithm]
    if algorithm == "td3":
        from stable_baselines3.common.noise import NormalActionNoise

        zero = np.zeros(env.action_space.shape or ())
        settings["action_noise"] = NormalActionNoise(zero, zero + 0.1)
    make = {
        "td3": stable_baselines3.TD3,
        "sac": stable_baselines3.SAC,
        "tqc": sb3_contrib.TQC,
    }[algorithm]
    return make(
        "MlpPolicy",
        env,
        batch_size=256,
        learning_starts=options.start,
        train_freq=1,
        gradient_steps=1,
        device="cpu",
        seed=options.seed,
        **settings,
    )


class PeerPolicy(TensorDictModuleBase):
    """The policy of a Stable-Baselines3 model, as the evaluation calls policies."""

    in_keys = ["observation"]
    out_keys = ["action"]

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.__dict__["model"] = model

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action."""
        action, _ = self.model.predict(tensordict["observation"].numpy(), deterministic=True)
        return tensordict.set("action", torch.as_tensor(action))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=("td3", "sac", "tqc"))
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--start", type=int, default=5000, help="random steps before learning")
    parser.add_argument("--drop", type=int, default=2, help="TQC: top quantiles dropped per critic")
    parser.add_argument("--critic-hidden", type=int, nargs="+", default=[512, 512, 512])
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.out / options.algorithm / options.env / f"seed{options.seed}"
    table = Table(folder / "eval.csv", ("step", *Evaluation._fields))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.csv").unlink(missing_ok=True)
    model = make_model(options.algorithm, gym.make(options.env), options)
    judge: Any = SimpleNamespace(simulator=gym.make(options.env))
    for step in range(0, options.steps + 1, EVAL_INTERVAL):
        if step:
            model.learn(EVAL_INTERVAL, reset_num_timesteps=False, log_interval=10**9)
        result = evaluate(
            PeerPolicy(model),
            judge,
            EVAL_EPISODES,
            EVALUATION_SEED + options.seed,
        )
        table.write({"step": step, **result._asdict()})
        print(f"step {step}: return {result.return_mean:.1f}", flush=True)
    print(f"Written to {folder / 'eval.csv'}.")


if __name__ == "__main__":
    main()
