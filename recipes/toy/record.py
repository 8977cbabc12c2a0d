"""The results of the three ways of training, as tables and comparisons."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vmfer_recipes.toy.agents import Critics
from vmfer_recipes.toy.environment import ACTION_BOUND, reward
from vmfer_recipes.toy.resampling import WAYS, angle
from vmfer_recipes.toy.simple_example import FixedCritics, square_grid

__all__ = ["Difference", "Interval", "Record", "Snapshot", "mean_interval"]

_BINS = 36  # of angles, five degrees each
# Critics change most at the beginning, so that is where most of their pictures are taken.
_MOMENTS = (0.02, 0.06, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class Snapshot:
    """Two critics of one seed at one moment, over the grid ``[side, side]`` of all actions.

    Attributes:
        ways: the ways whose actors follow these critics.
        update: how many updates the actors have made.
        values: Q_i ``[critic, side, side]``.
        angles: between the critics' gradients, in degrees, ``[side, side]``.
    """

    ways: tuple[str, ...]
    update: int
    values: Tensor
    angles: Tensor


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % bootstrap interval."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Difference:
    """A way's mean advantage over Uniform, seed by seed.

    Attributes:
        way: the way compared with Uniform.
        measure: what is compared.
        mean: the mean of the paired differences.
        low: the lower end of its 95 % interval.
        high: the upper end.
    """

    way: str
    measure: str
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        verdict = "no significant difference"
        if self.low > 0:
            verdict = f"{self.way.capitalize()} is better"
        elif self.high < 0:
            verdict = f"{self.way.capitalize()} is worse"
        interval = f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"
        return f"{self.way.capitalize()} - Uniform, {self.measure}: {interval}: {verdict}"


def mean_interval(values: np.ndarray, resamples: int = 10_000) -> Interval:
    """The mean over the last dimension, the seeds, with a percentile-bootstrap interval.

    Args:
        values: an array ``[*, seeds]``.
        resamples: how many times the seeds are resampled.
    """
    seeds = values.shape[-1]
    counts = np.random.default_rng(0).multinomial(seeds, [1 / seeds] * seeds, size=resamples)
    low, high = np.quantile(values @ counts.T / seeds, [0.025, 0.975], axis=-1)
    return Interval(values.mean(-1), low, high)


class Record:
    """Collects the course of a run.

    Args:
        updates: how many updates the actors will make.
        seeds: the numbers of the seeds.
        log_interval: updates between the rows of a table.
    """

    def __init__(self, updates: int, seeds: Sequence[int], log_interval: int) -> None:
        self.seeds = seeds
        self.snapshots: list[Snapshot] = []
        self._moments = {max(1, round(moment * updates)) for moment in _MOMENTS}
        self._log_interval = log_interval
        self._actions: list[Tensor] = []
        self._angle_counts = torch.zeros(len(WAYS), _BINS)

    @property
    def actions(self) -> np.ndarray:
        """π(s₀) from before the first update to after the last: ``[update, way, seed, 2]``."""
        return torch.stack(self._actions).numpy()

    @property
    def rewards(self) -> np.ndarray:
        """The rewards of :attr:`actions`, ``[update, way, seed]``."""
        return reward(torch.stack(self._actions).double()).numpy()

    @property
    def angle_shares(self) -> np.ndarray:
        """How the angles of the transitions used are spread, ``[way, bin]``."""
        return (self._angle_counts / self._angle_counts.sum(-1, keepdim=True)).numpy()

    @property
    def angle_edges(self) -> np.ndarray:
        """The edges of the bins, in degrees."""
        return np.linspace(0, 180, _BINS + 1)

    def add_actions(self, actions: Tensor) -> None:
        """Records the actions ``[way, seed, 2]`` of the current policies."""
        self._actions.append(actions.detach().clone())

    def add_angles(self, gradients: Tensor, used: Tensor) -> None:
        """Counts the angles of the transitions used, given as in ``Actors.update``."""
        bins = (angle(gradients) / 180 * _BINS).long().clamp(max=_BINS - 1)
        counts = used.flatten(1).float()
        self._angle_counts.scatter_add_(1, bins.flatten(1), counts)

    def add_critics(self, update: int, critics: Sequence[Critics | FixedCritics]) -> None:
        """Keeps how the first seed's critics see the action space, at some of the updates.

        Args:
            update: how many updates the actors have made.
            critics: those of all ways together, or those of each way.
        """
        if update not in self._moments:
            return
        grid = square_grid(ACTION_BOUND, 61)
        actions = grid.flatten(0, 1).expand(len(self.seeds), -1, -1)
        for index, each in enumerate(critics):
            ways = WAYS if len(critics) == 1 else (WAYS[index],)
            values = each.values(actions, frozen=True)[:, 0].unflatten(-1, grid.shape[:2])
            angles = angle(each.gradients(actions)[:, 0]).unflatten(-1, grid.shape[:2])
            self.snapshots.append(Snapshot(ways, update, values, angles))

    def differences(self) -> list[Difference]:
        """Compares both other ways with Uniform, by the final and by the mean reward."""
        rewards = self.rewards
        measures = {"final reward": rewards[-1], "mean reward over all updates": rewards.mean(0)}
        differences = []
        for index, way in enumerate(WAYS[1:], start=1):
            for measure, value in measures.items():
                interval = mean_interval(value[index] - value[0])
                ends = map(float, (interval.mean, interval.low, interval.high))
                differences.append(Difference(way, measure, *ends))
        return differences

    def write(self, run_dir: Path) -> list[Path]:
        """Writes the tables and returns their paths."""
        rewards = self.rewards
        last, num_seeds = len(rewards) - 1, len(self.seeds)
        logged = sorted({*range(0, last, self._log_interval), last})
        curves = mean_interval(rewards[logged], resamples=2000)
        names = [f"{way}_{part}" for way in WAYS for part in ("mean", "low", "high")]
        ends = np.stack([curves.mean, curves.low, curves.high], -1).reshape(len(logged), -1)
        bins = zip(self.angle_edges, self.angle_edges[1:], self.angle_shares.T, strict=False)
        return [
            _write_table(
                run_dir / "rewards.csv",
                ["update", "seed", *WAYS],
                (
                    (update, seed, *_rounded(rewards[update, :, index]))
                    for update in logged
                    for index, seed in enumerate(self.seeds)
                ),
            ),
            _write_table(
                run_dir / "curves.csv",
                ["update", *names],
                ((u, *_rounded(row)) for u, row in zip(logged, ends, strict=True)),
            ),
            _write_table(
                run_dir / "angles.csv",
                ["from_degrees", "to_degrees", *WAYS],
                ((f"{low:g}", f"{high:g}", *_rounded(row)) for low, high, row in bins),
            ),
            _write_table(
                run_dir / "differences.csv",
                ["way", "minus", "measure", "mean", "low", "high", "seeds"],
                (
                    (d.way, "uniform", d.measure, *_rounded((d.mean, d.low, d.high)), num_seeds)
                    for d in self.differences()
                ),
            ),
        ]


def _rounded(values: Iterable[float]) -> list[str]:
    return [f"{value:.6f}" for value in values]


def _write_table(path: Path, header: list[str], rows: Iterable[Iterable[object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path
