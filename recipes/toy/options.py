"""What the keys of ``configs/shooting.yaml`` may hold."""

from __future__ import annotations

import math

from vmfer_recipes.training.rules import Rules

__all__ = ["RULES"]

RULES = Rules(
    integers={
        "seeds": 2,  # one has no interval
        "first_seed": 0,
        "updates": 1,
        "policy_delay": 1,
        "batch_size": 1,
        "log_interval": 1,
        "threads": 1,
    },
    numbers={
        "critic_lr": (0, math.inf),
        "actor_lr": (0, math.inf),
        "actor_noise": (0, math.inf),
        "actor_noise_clip": (0, math.inf),
        "low_uncertainty": (0, 1),
        "largest_angle": (0, 180),
        "example_noise": (0, math.inf),
    },
    texts=("run_dir",),
)
