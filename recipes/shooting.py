"""The paper's toy experiments: the simple example, and three ways of resampling in Shooting.

python recipes/shooting.py seeds=20 updates=500 run_dir=runs/shooting
"""

from __future__ import annotations

from vmfer_recipes.config.launch import check_command_line, recipe
from vmfer_recipes.toy.options import ShootingConfig

if __name__ == "__main__":
    check_command_line("shooting", ShootingConfig)  # before the slow imports below

import copy
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.toy.agents import Actors, Critics, Shots, anywhere
from vmfer_recipes.toy.environment import ACTION_BOUND
from vmfer_recipes.toy.networks import from_each
from vmfer_recipes.toy.record import Record
from vmfer_recipes.toy.resampling import Candidates, make_ways
from vmfer_recipes.toy.simple_example import FixedCritics, simple_example


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
    """Trains one actor in each of the three ways, for every seed."""
    seeds = range(cfg.first_seed, cfg.first_seed + cfg.seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ways = make_ways(cfg.low_uncertainty, cfg.largest_angle)
    critics = _make_critics(cfg, len(ways), generators)
    actors = Actors(len(ways), cfg.hidden, cfg.actor_lr, generators)
    aim = partial(anywhere, generators)
    if cfg.critics == "own":
        aim = partial(actors.explore, cfg.exploration_noise, generators)
    critic_updates = cfg.updates * cfg.policy_delay
    shots = Shots(aim, len(critics), cfg.shots or critic_updates, generators)
    record = Record(cfg.updates, seeds, cfg.log_interval)

    for update in range(1, cfg.updates + 1):
        for step in range((update - 1) * cfg.policy_delay, update * cfg.policy_delay):
            shots.fire(progress=Fraction(step + 1, critic_updates))
            batches = zip(*shots.sample(cfg.batch_size), strict=True)
            for each, batch in zip(critics, batches, strict=True):
                each.update(batch)

        actions = actors.actions()
        record.add_actions(actions)
        # The same for the three ways, so that the seeds can be compared in pairs.
        noise = cfg.actor_noise * from_each(generators, cfg.batch_size, 2, normal=True)
        noise = noise.clamp(-cfg.actor_noise_clip, cfg.actor_noise_clip)
        noisy = (actions.detach()[:, :, None] + noise).clamp(-ACTION_BOUND, ACTION_BOUND)
        followed = zip(cycle(critics), noisy, strict=False)
        gradients = torch.stack([each.gradients(at) for each, at in followed], 1)
        candidates = map(Candidates, actions.detach(), gradients.unbind(1))
        used = torch.stack([way(each) for way, each in zip(ways.values(), candidates, strict=True)])
        actors.update(actions, gradients[0], used)
        record.add_angles(gradients, used)
        record.add_critics(update, critics)

    record.add_actions(actors.actions())
    return record


def _make_critics(
    cfg: ShootingConfig, ways: int, generators: Sequence[torch.Generator]
) -> list[Critics | FixedCritics]:
    """The critics that all ways share, or equal ones for each way."""
    if cfg.critics == "fixed":
        errors = cfg.example_noise * from_each(generators, 2, 1, 2, normal=True)
        return [FixedCritics(errors.transpose(0, 1), cfg.first_peak)]
    critics = Critics(cfg.hidden, cfg.critic_lr, generators)
    return [copy.deepcopy(critics) for _ in range(ways if cfg.critics == "own" else 1)]


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
