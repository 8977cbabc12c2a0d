"""The results of forks: one row for each, and paired differences between arms."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.fork.arms import Arm
from vmfer_recipes.fork.plan import Fork, Plan
from vmfer_recipes.report.inference import Estimate, holm, sign_flip_p
from vmfer_recipes.run.files import replacing
from vmfer_recipes.run.tables import read_columns

__all__ = [
    *("Comparison", "Result", "compare", "hierarchical_bootstrap", "read_results"),
    "write_results",
]

# The smallest p-value of a sign-flip test with n units is 2^(1-n): below six, none is under 0.05.
ENOUGH_UNITS = 6


class Result(NamedTuple):
    """A row of ``forks.csv``."""

    run: str
    seed: int
    at: int
    arm: str
    draw: int
    return_before: float
    return_after: float


def read_results(plan: Plan) -> list[Result]:
    """The results of all finished forks of a plan."""
    results = []
    for moment in plan.moments:
        record = moment.read_record()
        if record is None:
            continue
        before = float(record["return_mean"])
        source = moment.source
        for fork in moment.forks:
            if fork.is_finished:
                place = (str(source.run_dir), source.seed, source.step, fork.arm.name, fork.draw)
                results.append(Result(*place, before, _return_after(fork)))
    return results


def _return_after(fork: Fork) -> float:
    file = fork.path / "eval.csv"
    try:
        value = float(read_columns(file)["return_mean"][-1])
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"{file} cannot be read ({first_line(error)}): delete {fork.path} and run the same "
            "command, which repeats this fork."
        ) from error
    return value


def write_results(results: Sequence[Result], file: Path) -> None:
    """Writes ``forks.csv``."""
    with replacing(file) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Result._fields)
        writer.writerows(results)


@dataclass(frozen=True)
class Comparison:
    """An arm compared with the reference, over the forks that both have finished.

    Attributes:
        arm: the name of the arm.
        after: the mean return after the fork.
        difference: the mean difference from the reference, with its 95 % interval.
        covers: the levels with several units, over which the interval is computed.
        top_count: the number of units of the highest of these.
        wins: the fraction of pairs in which the arm is better; a tie counts half.
        pairs: the number of pairs.
        p: the p-value of a sign-flip test.
        corrected_p: the same, with Holm's correction over the arms.
        units: what the test flips: seeds, checkpoints or draws.
        unit_count: how many of these there are.
    """

    arm: str
    after: float
    difference: Estimate
    covers: tuple[str, ...]
    top_count: int
    wins: float
    pairs: int
    p: float
    corrected_p: float
    units: str
    unit_count: int


def compare(results: Sequence[Result], arms: Sequence[Arm]) -> list[Comparison]:
    """Compares all arms but the first with the first.

    Differences are taken between forks of the same checkpoint and draw. Arms without such a pair
    are left out.

    Args:
        results: the results of forks.
        arms: the arms; the first is the reference.
    """
    after = {(r.seed, r.at, r.draw, r.arm): r.return_after for r in results}
    found = []
    for arm in arms[1:]:
        nested: dict[int, dict[int, list[float]]] = {}
        returns = []
        for seed, at, draw, name in after:
            other = after.get((seed, at, draw, arms[0].name))
            if name == arm.name and other is not None:
                value = after[seed, at, draw, name]
                nested.setdefault(seed, {}).setdefault(at, []).append(value - other)
                returns.append(value)
        if returns:
            values = [[np.array(draws) for draws in steps.values()] for steps in nested.values()]
            found.append((arm.name, float(np.mean(returns)), values))
    tests = [_test(values) for _, _, values in found]
    corrected = holm([p for p, _, _ in tests])
    comparisons = []
    for (name, mean, values), (p, units, count), adjusted in zip(
        found, tests, corrected, strict=True
    ):
        difference, covers, top_count = _interval(values)
        pairs = np.concatenate([np.concatenate(steps) for steps in values])
        wins = float((pairs > 0).mean() + 0.5 * (pairs == 0).mean())
        comparisons.append(
            Comparison(
                arm=name,
                after=mean,
                difference=difference,
                covers=covers,
                top_count=top_count,
                wins=wins,
                pairs=len(pairs),
                p=p,
                corrected_p=adjusted,
                units=units,
                unit_count=count,
            )
        )
    return comparisons


def _interval(values: list[list[np.ndarray]]) -> tuple[Estimate, tuple[str, ...], int]:
    """The mean difference with its interval, the levels that it covers, and the units of the first.

    A level with a single unit has no spread, so the interval starts below it.
    """
    nested: Any = values
    while len(nested) == 1 and isinstance(nested, list):
        nested = nested[0]
    counts = {
        "seed": len(values),
        "checkpoint": max(len(steps) for steps in values),
        "draw": max(len(draws) for steps in values for draws in steps),
    }
    covers = tuple(name for name, count in counts.items() if count > 1)
    return hierarchical_bootstrap(nested), covers, len(nested)


def _test(values: list[list[np.ndarray]]) -> tuple[float, str, int]:
    """A sign-flip test over the highest level with enough units, or else over draws.

    Returns:
        the p-value, the level and its number of units.
    """
    seeds = np.array([np.mean([draws.mean() for draws in steps]) for steps in values])
    checkpoints = np.array([draws.mean() for steps in values for draws in steps])
    units, name = np.concatenate([np.concatenate(steps) for steps in values]), "draw"
    if len(checkpoints) >= ENOUGH_UNITS:
        units, name = checkpoints, "checkpoint"
    if len(seeds) >= ENOUGH_UNITS:
        units, name = seeds, "seed"
    return sign_flip_p(units), name, len(units)


def hierarchical_bootstrap(values: Any, repetitions: int = 10_000) -> Estimate:
    """The mean of nested values with a 95 % percentile interval.

    The draws of a checkpoint are averaged, then the checkpoints of a seed, then the seeds, so that
    every seed has the same weight. The bootstrap resamples seeds, then the checkpoints within each
    of them, then the draws within each of these.

    Args:
        values: a list of seeds, each a list of checkpoints, each an array of draws. Any other
            depth works as well; an array is the lowest level.
        repetitions: the number of bootstrap samples.

    Returns:
        the estimate. It has no interval if there is a single seed, which says nothing about
        other seeds.

    Example:
        >>> seeds = [[np.array([1.0, 3.0])], [np.array([4.0]), np.array([6.0, 6.0, 6.0])]]
        >>> hierarchical_bootstrap(seeds).value  # the mean of 2 and of the mean of 4 and 6
        3.5
    """
    if len(values) < 2:
        return Estimate(_nested_mean(values))
    resampled = _resampled_means(values, repetitions, np.random.default_rng(0))
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(_nested_mean(values), float(low), float(high))


def _nested_mean(values: Any) -> float:
    parts = values if isinstance(values, np.ndarray) else [_nested_mean(part) for part in values]
    return float(np.mean(parts))


def _resampled_means(values: Any, count: int, generator: np.random.Generator) -> np.ndarray:
    """The means of ``count`` independent bootstrap samples of a level and of those below."""
    chosen = generator.integers(len(values), size=(count, len(values)))
    if isinstance(values, np.ndarray):
        return values[chosen].mean(1)
    drawn = np.empty(chosen.shape)
    for number, part in enumerate(values):
        places = chosen == number  # a part that is chosen twice is resampled twice
        drawn[places] = _resampled_means(part, int(places.sum()), generator)
    return drawn.mean(1)
