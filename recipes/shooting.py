"""The paper's toy experiments: the simple example, and three ways of resampling in Shooting.

python recipes/shooting.py seeds=20 updates=500 run_dir=runs/shooting
"""

from __future__ import annotations

from vmfer_recipes.toy.options import ShootingConfig
from vmfer_recipes.training.launch import check_command_line, recipe

if __name__ == "__main__":
    check_command_line("shooting", ShootingConfig)  # at once: the imports below take seconds

from pathlib import Path

import torch
from omegaconf import OmegaConf

from vmfer_recipes.toy.agents import Actors, Critics, Shots
from vmfer_recipes.toy.environment import ACTION_BOUND
from vmfer_recipes.toy.networks import from_each
from vmfer_recipes.toy.record import Record
from vmfer_recipes.toy.resampling import Candidates, make_ways
from vmfer_recipes.toy.simple_example import simple_example
from vmfer_recipes.training.errors import UserError, first_line


@recipe("shooting", ShootingConfig)
def main(cfg: ShootingConfig) -> None:
    """Trains all seeds, and writes tables and pictures."""
    torch.set_num_threads(cfg.threads)
    run_dir = _make_directory(cfg)
    record = compare(cfg)
    paths = record.write(run_dir) + _draw(record, cfg, run_dir)
    for difference in record.differences():
        print(difference)
    print(f"(mean over {cfg.seeds} seeds, 95 % bootstrap interval of the paired difference)")
    for path in paths:
        print(path)


def compare(cfg: ShootingConfig) -> Record:
    """Trains one actor in each of the three ways against the same critics, for every seed."""
    seeds = range(cfg.first_seed, cfg.first_seed + cfg.seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    critics = Critics(cfg.hidden, cfg.critic_lr, generators)
    ways = make_ways(cfg.low_uncertainty, cfg.largest_angle)
    actors = Actors(len(ways), cfg.hidden, cfg.actor_lr, generators)
    shots = Shots(cfg.updates * cfg.policy_delay, generators)
    record = Record(cfg.updates, seeds, cfg.log_interval)

    for update in range(1, cfg.updates + 1):
        for _ in range(cfg.policy_delay):
            shots.fire()
            critics.update(shots.sample(cfg.batch_size))

        actions = actors.actions()
        record.add_actions(actions)
        # The same for the three ways, so that the seeds can be compared in pairs.
        noise = cfg.actor_noise * from_each(generators, cfg.batch_size, 2, normal=True)
        noise = noise.clamp(-cfg.actor_noise_clip, cfg.actor_noise_clip)
        noisy = (actions.detach()[:, :, None] + noise).clamp(-ACTION_BOUND, ACTION_BOUND)
        gradients = torch.stack([critics.gradients(each) for each in noisy], 1)
        candidates = map(Candidates, actions.detach(), gradients.unbind(1))
        used = torch.stack([way(each) for way, each in zip(ways.values(), candidates, strict=True)])
        actors.update(actions, gradients[0], used)
        record.add_angles(gradients, used)
        record.add_critics(update, critics)

    record.add_actions(actors.actions())
    return record


def _make_directory(cfg: ShootingConfig) -> Path:
    run_dir = Path(cfg.run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(cfg.as_dict(), run_dir / "config.yaml")
    except OSError as error:
        raise UserError(f"run_dir={run_dir} cannot be written to ({first_line(error)}).") from error
    return run_dir


def _draw(record: Record, cfg: ShootingConfig, run_dir: Path) -> list[Path]:
    try:
        from vmfer_recipes.toy import pictures
    except ImportError:
        print("No pictures: they need matplotlib (`pip install matplotlib`).")
        return []
    example = simple_example(cfg.example_noise, cfg.first_seed)
    return [
        pictures.draw_example(example, run_dir / "simple_example.png"),
        pictures.draw_angles(record, run_dir / "angles.png"),
        pictures.draw_rewards(record, run_dir / "rewards.png"),
        pictures.draw_trajectories(record, run_dir / "trajectories.png"),
    ]


if __name__ == "__main__":
    main()
