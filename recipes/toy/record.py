"""Trains actors with three ways of choosing transitions, and compares them in tables.

All transitions have the same state and differ by the noise on their action. A choice is a mask
``[seed, batch]``, based on the gradients ``[critic, seed, batch, 2]`` of the losses l_i = -Q_i.
"""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer import directional
from vmfer_recipes.toy.agents import (
    OPTIMAL_ACTION,
    Actors,
    Critics,
    FixedCritics,
    Generators,
    from_each,
    reward,
)

if TYPE_CHECKING:
    from vmfer_recipes.shooting import ShootingConfig

WAYS = ("uniform", "uncertainty", "oracle")  # the ways of choosing transitions

ANGLE_EDGES = np.linspace(0, 180, 37)  # the edges of the bins, in degrees
_BINS = len(ANGLE_EDGES) - 1
# Critics change most at the beginning, so most of their pictures are taken there.
_MOMENTS = (0.02, 0.06, 0.2, 0.4, 1.0)

AllCritics = list[Critics | FixedCritics]  # one for each way, or one that all ways share


def uncertainty(gradients: Tensor, low_uncertainty: float, largest_angle: float = 180.0) -> Tensor:
    """Selects the fraction of each batch on whose direction the critics agree best.

    Transitions with an angle above ``largest_angle`` degrees are left out in any case.
    """
    # The factor of two critics depends on the angle only, and no acos blurs small angles.
    factor = directional.sampling_factor(gradients, used=0)
    count = max(1, round(low_uncertainty * factor.shape[-1]))
    best = factor.topk(count, dim=-1).indices
    used = torch.zeros_like(factor, dtype=torch.bool).scatter(-1, best, True)
    return used & (angle(gradients) <= largest_angle)


def oracle(gradients: Tensor, action: Tensor) -> Tensor:
    """Selects transitions whose first gradient moves the action ``[seed, 2]`` toward a*."""
    wanted = action.new_tensor(OPTIMAL_ACTION) - action
    return (-gradients[0] * wanted[:, None]).sum(-1) > 0


def angle(gradients: Tensor) -> Tensor:
    """The angle in degrees between the gradients ``[2, *batch, 2]`` of two critics.

    Two directions at an angle Θ have a resultant of length cos(Θ/2).
    """
    return torch.rad2deg(2 * directional.resultant_length(gradients).acos())


def compare(cfg: ShootingConfig) -> Record:
    """Trains one actor in each of the three ways, for every seed."""
    seeds = range(cfg.first_seed, cfg.first_seed + cfg.seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    critics = _make_critics(cfg, generators)
    actors = Actors(len(WAYS), cfg.hidden, cfg.actor_lr, generators)
    critic_updates = cfg.updates * cfg.policy_delay
    num_shots = cfg.shots or critic_updates
    shots: list[Tensor] = []  # [buffer, seed, 2] each
    record = Record(seeds)

    for update in range(1, cfg.updates + 1):
        for step in range((update - 1) * cfg.policy_delay, update * cfg.policy_delay):
            while len(shots) * critic_updates < (step + 1) * num_shots:
                if cfg.critics == "own":  # with the same noise for all ways of a seed
                    noise = cfg.exploration_noise * from_each(generators, 2, normal=True)
                    shots.append((actors.actions().detach() + noise).clamp(-1, 1))
                else:
                    shots.append(2 * from_each(generators, 2)[None] - 1)
            index = (from_each(generators, cfg.batch_size) * len(shots)).long()
            # In single precision, the largest number below one may round up.
            index = index.clamp(max=len(shots) - 1)[None, ..., None]
            batches = torch.stack(shots, 2).take_along_dim(index, 2)
            for each, batch in zip(critics, batches, strict=True):
                each.update(batch)

        actions = actors.actions()
        current = actions.detach()
        # The noise is the same for the three ways, so that seeds can be compared in pairs.
        noise = cfg.actor_noise * from_each(generators, cfg.batch_size, 2, normal=True)
        noise = noise.clamp(-cfg.actor_noise_clip, cfg.actor_noise_clip)
        noisy = (current[:, :, None] + noise).clamp(-1, 1)
        followed = zip(cycle(critics), noisy, strict=False)
        gradients = torch.stack([each.gradients(at) for each, at in followed], 1)
        masks = [
            torch.ones(noisy.shape[1:-1], dtype=torch.bool),
            uncertainty(gradients[:, 1], cfg.low_uncertainty, cfg.largest_angle),
            oracle(gradients[:, 2], current[2]),
        ]
        used = torch.stack(masks)  # [way, seed, batch]
        actors.update(actions, gradients[0], used)
        record.actions.append(current)
        record.count_angles(gradients, used)
        if update in {max(1, round(moment * cfg.updates)) for moment in _MOMENTS}:
            record.snapshots.append((update, copy.deepcopy(critics)))

    record.actions.append(actors.actions().detach())
    return record


def _make_critics(cfg: ShootingConfig, generators: Generators) -> AllCritics:
    """The critics that all ways share, or equal ones for each way."""
    if cfg.critics == "fixed":
        errors = cfg.example_noise * from_each(generators, 2, 1, 2, normal=True)
        return [FixedCritics(errors.transpose(0, 1), cfg.first_peak)]
    critics = Critics(cfg.hidden, cfg.critic_lr, generators)
    return [copy.deepcopy(critics) for _ in range(len(WAYS) if cfg.critics == "own" else 1)]


@dataclass
class Record:
    """The course of a comparison."""

    seeds: range
    actions: list[Tensor] = field(default_factory=list)  # [way, seed, 2], one more than updates
    angle_counts: Tensor = field(default_factory=lambda: torch.zeros(len(WAYS), _BINS))
    snapshots: list[tuple[int, AllCritics]] = field(default_factory=list)  # update, critics

    def count_angles(self, gradients: Tensor, used: Tensor) -> None:
        """Counts the angles between ``[critic, way, seed, batch, 2]`` of the transitions used."""
        bins = (angle(gradients) / 180 * _BINS).long().clamp(max=_BINS - 1)
        self.angle_counts.scatter_add_(1, bins.flatten(1), used.flatten(1).float())

    @property
    def rewards(self) -> np.ndarray:
        """The rewards of :attr:`actions`, ``[update, way, seed]``."""
        return reward(torch.stack(self.actions).double()).numpy()

    @property
    def angle_fractions(self) -> np.ndarray:
        """The distribution of the angles of the transitions used, ``[way, bin]``."""
        return (self.angle_counts / self.angle_counts.sum(-1, keepdim=True)).numpy()

    def differences(self) -> dict[tuple[str, str], np.ndarray]:
        """The paired differences from Uniform: mean, low and high, by way and measure."""
        rewards = self.rewards
        measures = {"final reward": rewards[-1], "mean reward over all updates": rewards.mean(0)}
        return {
            (way, measure): mean_interval(values[index] - values[0])
            for index, way in enumerate(WAYS[1:], start=1)
            for measure, values in measures.items()
        }

    def write(self, run_dir: Path, log_interval: int) -> list[Path]:
        """Writes the tables, with a row every ``log_interval`` updates, and returns their paths."""
        rewards = self.rewards
        logged = sorted({*range(0, len(rewards) - 1, log_interval), len(rewards) - 1})
        curves = mean_interval(rewards[logged], resamples=2000)  # [end, update, way]
        bins = zip(ANGLE_EDGES, ANGLE_EDGES[1:], self.angle_fractions.T, strict=False)
        ends = ("mean", "low", "high")
        tables: dict[str, list[list[object]]] = {
            "rewards": [["update", "seed", *WAYS]],
            "curves": [["update", *(f"{way}_{end}" for way in WAYS for end in ends)]],
            "angles": [["from_degrees", "to_degrees", *WAYS]],
            "differences": [["way", "minus", "measure", *ends, "seeds"]],
        }
        for index, update in enumerate(logged):
            for seed, values in zip(self.seeds, rewards[update].T, strict=True):
                tables["rewards"].append([update, seed, *_rounded(values)])
            tables["curves"].append([update, *_rounded(curves[:, index].T.flat)])
        for low, high, fractions in bins:
            tables["angles"].append([f"{low:g}", f"{high:g}", *_rounded(fractions)])
        for (way, measure), values in self.differences().items():
            row = [way, "uniform", measure, *_rounded(values), len(self.seeds)]
            tables["differences"].append(row)
        for name, rows in tables.items():
            with (run_dir / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        return [run_dir / f"{name}.csv" for name in tables]


def mean_interval(values: np.ndarray, resamples: int = 10_000) -> np.ndarray:
    """The mean of ``[*, seeds]`` over the seeds with its 95 % bootstrap interval, ``[3, *]``."""
    seeds = values.shape[-1]
    counts = np.random.default_rng(0).multinomial(seeds, [1 / seeds] * seeds, size=resamples)
    low, high = np.quantile(values @ counts.T / seeds, [0.025, 0.975], axis=-1)
    return np.stack([values.mean(-1), low, high])


def verdict(way: str, measure: str, ends: np.ndarray) -> str:
    """Says whether a way differs from Uniform by a measure, given mean, low and high."""
    mean, low, high = ends
    name, found = way.capitalize(), "no significant difference"
    if low > 0 or high < 0:
        found = f"{name} is {'better' if low > 0 else 'worse'}"
    return f"{name} - Uniform, {measure}: {mean:+.4f} [{low:+.4f}, {high:+.4f}]: {found}"


def _rounded(values: Iterable[float]) -> list[str]:
    return [f"{value:.6f}" for value in values]
