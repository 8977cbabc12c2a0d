"""Measures which signal tells that a critic's direction is right, by true action gradients.

python recipes/oracle.py 'run=runs/td3/GoalReaching3-v0/uniform-fresh/seed*' states=200
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from vmfer_recipes.config.command_line import read_options
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import MISSING, Config, key
from vmfer_recipes.config.launch import program, quiet_torchrl
from vmfer_recipes.fork.sources import find_sources

SIGNALS = (
    *("factor", "pre_tanh_factor", "target_agreement", "gradient_norm", "signal_to_noise"),
    *("consistency", "td_error", "value_gap", "age", "saturation", "on_policy_distance"),
)


@dataclass
class OracleConfig(Config):
    """Compares signals of stored transitions with the true action gradients of their states."""

    run: list[str] = key(
        MISSING, "run directories that differ only in their seed, or a pattern such as '.../seed*'"
    )
    at: list[int] = key([], "steps of the checkpoints; []: all in checkpoint/kept", low=1)
    signals: list[str] = key(
        list(SIGNALS), "signals, or import paths of functions score(loss, batch) -> [batch]"
    )
    states: int = key(200, "stored states of each checkpoint to measure", low=10)
    horizon: int = key(300, "environment steps of a rollout", low=1)
    step_size: float = key(
        0.05, "change of the action, whose range is [-1, 1], for differences", low=1e-6, high=1
    )
    updates: int = key(500, "updates of the actor with frozen critics; 0: none", low=0)
    power: float = key(4.0, "strength of the oracle: P ∝ exp((1 + cos) / 2)^power", low=0, high=100)
    draws: int = key(5, "repetitions of the updates, with different random numbers", low=1)
    num_eval_episodes: int = key(20, "episodes of an evaluation after the updates", low=1)
    seed: int = key(0, "seed of the choice of states", low=0)
    out: str = key("runs/oracle", "directory of states.csv, signals.csv, updates.csv, oracle.md")


@program
def main() -> None:
    """Measures every checkpoint, then writes the tables."""
    options = read_options("python recipes/oracle.py", sys.argv[1:], OracleConfig)
    sources = find_sources(options.run, options.at)
    unknown = [name for name in options.signals if name not in SIGNALS and "." not in name]
    if unknown:
        raise UserError(
            f"signals={unknown[0]} is not known: use one of {', '.join(SIGNALS)}, or the import "
            "path of a function."
        )
    # Imported here to keep --help and error messages fast.
    from vmfer_recipes.fork.oracle import measure

    quiet_torchrl()
    print(measure(options, sources))


if __name__ == "__main__":
    main()
