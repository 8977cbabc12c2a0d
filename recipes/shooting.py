"""The paper's toy experiments: the simple example, and three ways of resampling in Shooting.

python recipes/shooting.py seeds=20 updates=500 run_dir=runs/shooting
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import Config, key, schema
from vmfer_recipes.config.launch import recipe


@schema("shooting")
class ShootingConfig(Config):
    """The paper's toy experiments: its simple example and the Shooting environment."""

    # One seed has no confidence interval.
    seeds: int = key(20, "independent repetitions, trained in parallel", low=2)
    first_seed: int = key(0, "number of the first repetition", low=0)
    critics: str = key(
        "shared",
        "shared: learn from random shots; own: from their actor's shots; fixed: as in the example",
        choices=("shared", "own", "fixed"),
    )
    shots: int | None = key(
        None, "shots that the critics learn from; null: one per update of the critics", low=1
    )
    exploration_noise: float = key(
        0.1, "standard deviation of the noise on the actors' shots (critics=own)", low=0
    )
    first_peak: float = key(
        -1.0, "both coordinates of the peak of Q_1 (critics=fixed)", low=-1, high=1
    )
    updates: int = key(500, "updates of the actors", low=1)
    policy_delay: int = key(2, "critic updates per update of the actors", low=1)
    batch_size: int = key(256, "transitions per update, for both critics and actors", low=1)
    hidden: list[int] = key([64, 64], "hidden units of actors and critics, per layer (ReLU)", low=1)
    critic_lr: float = key(1e-3, "learning rate of the critics (Adam)", low=0, aka=("lr",))
    actor_lr: float = key(1e-3, "learning rate of the actors (Adam)", low=0, aka=("lr",))
    actor_noise: float = key(
        0.2, "standard deviation of the noise on the actor's actions (Algorithm 1)", low=0
    )
    actor_noise_clip: float = key(0.5, "largest absolute value of that noise", low=0)
    low_uncertainty: float = key(
        0.5, "fraction of a batch, with the smallest angles, that Uncertainty uses", low=0, high=1
    )
    largest_angle: float = key(
        180.0, "largest angle between gradients that Uncertainty uses, in degrees", low=0, high=180
    )
    example_noise: float = key(
        0.1, "standard deviation of ε, the noise of the simple example (variance 0.01)", low=0
    )
    log_interval: int = key(10, "updates between rows of the tables", low=1)
    threads: int = key(
        1, "CPU threads of PyTorch; results repeat for the same number", low=1, high=1024
    )
    run_dir: str = key("runs/shooting", "directory of all output; earlier files are overwritten")


@recipe("shooting", ShootingConfig)
def main(cfg: ShootingConfig) -> None:
    """Trains all seeds, and writes tables and pictures."""
    # Imported here to keep --help and error messages fast.
    import torch

    from vmfer_recipes.toy.record import compare, verdict

    torch.set_num_threads(cfg.threads)
    run_dir = Path(cfg.run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(cfg.as_dict()))
    except OSError as error:
        raise UserError(f"run_dir={run_dir} cannot be written to ({first_line(error)}).") from error
    record = compare(cfg)
    paths = record.write(run_dir, cfg.log_interval)
    try:
        from vmfer_recipes.toy.drawing import draw
    except ImportError:
        print("No pictures: they need matplotlib (`pip install matplotlib`).")
    else:
        paths += draw(record, cfg.example_noise, run_dir)
    for (way, measure), ends in record.differences().items():
        print(verdict(way, measure, ends))
    print(f"(mean over {cfg.seeds} seeds, 95 % bootstrap interval of the paired difference)")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
