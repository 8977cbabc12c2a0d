"""The report of forks: paired differences between arms, what they cover, and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vmfer_recipes.config.errors import UserError, counted
from vmfer_recipes.fork.plan import Plan
from vmfer_recipes.report.document import Block, Picture, Table, Text, to_markdown
from vmfer_recipes.report.figures import draw_estimate
from vmfer_recipes.report.inference import Estimate, holm, sign_flip_p
from vmfer_recipes.report.study import LEVEL
from vmfer_recipes.run.curve import BLUE, GRAY, VERMILION
from vmfer_recipes.run.files import replacing
from vmfer_recipes.run.tables import aligned, read_columns

_FEW_UNITS = 5  # a bootstrap of fewer units underestimates their spread by more than 10 %
# The smallest p-value of a sign-flip test with n units is 2^(1-n): below six, none is under 0.05.
_ENOUGH_UNITS = 6

COLUMNS = ["run", "seed", "at", "arm", "draw", "return_before", "return_after"]
"""The columns of ``forks.csv``."""


def write_report(plan: Plan) -> list[str]:
    """Writes ``forks.csv``, ``forks.md`` and the figures. Returns the lines to print."""
    results = _read_results(plan)
    if results.empty:
        return []
    comparisons = compare(results, [arm.name for arm in plan.arms])
    notes = _notes(plan, results, comparisons)
    table = _table(plan, results, comparisons)
    pictures = _pictures(plan, comparisons) if comparisons else []
    blocks: list[Block] = [Text("h1", "Forks"), Text("p", _question(plan)), table]
    blocks += [Text("list", notes), *pictures, Text("h2", "Checkpoint by checkpoint")]
    blocks.append(_checkpoint_table(plan, results))
    files = {
        "forks.csv": results.to_csv(index=False, lineterminator="\n").encode(),
        "forks.md": to_markdown(blocks, ".").encode(),
        **{picture.file: picture.png for picture in pictures},
    }
    try:
        for name, content in files.items():
            with replacing(plan.out / name, "wb") as file:
                file.write(content)
    except OSError as error:
        raise UserError(f"{plan.out} cannot be written ({error}): choose another out=.") from error
    lines = aligned([[*table.columns], *table.shown], left=1)
    return [*lines, *(f"- {note}" for note in notes), *(f"  {plan.out / name}" for name in files)]


def _question(plan: Plan) -> str:
    options, source = plan.options, plan.moments[0].source
    length = (
        f"{counted(options.length, 'environment step')} of full training"
        if options.mode == "live"
        else f"{counted(options.length, 'update')} of the actor with frozen critics"
    )
    names = ", ".join(arm.name for arm in plan.arms)
    return (
        f"{source.cfg.algorithm} on {source.cfg.env.name}: the arms {names} continue from the same "
        f"checkpoints for {length}, with common random numbers and the same initial states in "
        f"evaluations. The reference is {plan.arms[0].name}."
    )


def _table(plan: Plan, results: pd.DataFrame, comparisons: Sequence[Comparison]) -> Table:
    columns = {"arm": "", "return after": "{:.1f}", "difference [95 %]": "", "better in": "{:.0%}"}
    columns |= {"pairs": "", "p": "{:.3f}", "p (Holm)": "{:.3f}"}
    name = plan.arms[0].name
    after = results["return_after"][results["arm"] == name].mean()
    rows: list[tuple[Any, ...]] = [(f"{name} (reference)", after, *[None] * 5)]
    for each in comparisons:
        tested = (each.wins, each.pairs, each.p, each.corrected_p)
        rows.append((each.arm, each.after, each.difference.shown("{:+.1f}", "–"), *tested))
    caption = (
        "Returns after the fork, as means over the finished forks, and their paired differences "
        "from the reference."
    )
    return Table("forks", caption, columns, rows)


def _notes(plan: Plan, results: pd.DataFrame, comparisons: Sequence[Comparison]) -> list[str]:
    """What intervals and p-values cover, and what they do not."""
    seeds = results["seed"].nunique()
    moments = len(results[["seed", "at"]].drop_duplicates())
    notes = [
        f"{len(results):,} of {counted(len(plan.forks), 'fork')} are finished: "
        f"{counted(seeds, 'seed')}, {counted(moments, 'checkpoint')} in total, up to "
        f"{counted(plan.options.draws, 'draw')} of each."
    ]
    if not comparisons:
        return [*notes, "No arm can be paired with the reference yet."]
    covers = max((each.covers for each in comparisons), key=len)
    note = "There are no intervals: each arm has a single pair."
    if covers:
        words = ", then ".join(f"{level}s" for level in covers)
        note = f"Intervals: hierarchical bootstrap over {words} (95 % percentiles)."
        top = next(iter(covers))
        few = min(each.covers.get(top, 1) for each in comparisons)
        if few < _FEW_UNITS:
            note += f" Intervals over {counted(few, top)} are too narrow to rely on."
    notes.append(note)
    if seeds == 1:
        notes.append(
            "One seed: intervals and p-values describe the forks of this run only, not other runs."
        )
    for name, count in sorted({(each.units, each.unit_count) for each in comparisons}):
        note = f"p-values: sign-flip test over {counted(count, name)}, "
        if count < _ENOUGH_UNITS:
            note += f"which is too few: p cannot fall below {min(1.0, 2.0 ** (1 - count)):.3g}."
        else:
            note += f"the highest level with at least {_ENOUGH_UNITS} units; Holm's correction "
            note += f"over {len(comparisons)} arms."
            if name != "seed" and seeds > 1:
                note += f" It covers only these {seeds} seeds."
        notes.append(note)
    return notes


def _checkpoint_table(plan: Plan, results: pd.DataFrame) -> Table:
    arms = [arm.name for arm in plan.arms]
    columns = {"seed": "{}", "step": "", **dict.fromkeys(["before", *arms], "{:.1f}")}
    rows = []
    for (seed, step), forks in results.groupby(["seed", "at"]):
        after = forks.groupby("arm")["return_after"].mean().reindex(arms)
        rows.append((seed, step, forks["return_before"].iloc[0], *after))
    caption = "Return before the forks, and mean return after those of each arm."
    return Table("checkpoints", caption, columns, rows)


def _pictures(plan: Plan, comparisons: Sequence[Comparison]) -> list[Picture]:
    reference = plan.arms[0].name
    doses = {arm.name: arm.dose for arm in plan.arms if arm.dose is not None}
    text = f"Difference in return from {reference}"
    forest = forest_figure(comparisons, reference)
    pictures = [Picture("forks", forest, f"{text}, with 95 % intervals.")]
    if {*doses.values()} - {0.0, 1.0} and len({*doses.values()}) > 1:
        figure = dose_figure(comparisons, reference, doses)
        pictures.append(Picture("dose", figure, f"{text}, by the power of the factor."))
    return pictures


def forest_figure(comparisons: Sequence[Comparison], reference: str) -> Figure:
    """The difference of each arm from the reference, with its interval, from top to bottom."""
    figure = Figure(figsize=(8, 1.4 + 0.42 * len(comparisons)))
    axes = figure.subplots()
    axes.axvline(0, color=GRAY, linewidth=1)
    beside: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "color": GRAY}
    for y, each in enumerate(comparisons):
        color = VERMILION if each.difference.value < 0 else BLUE
        fill = color if each.corrected_p < LEVEL else "white"
        look = {"color": color, "marker": "o", "markerfacecolor": fill}
        draw_estimate(axes, each.difference, y, look)
        axes.text(1.02, y, f"p (Holm) = {each.corrected_p:.3f}, n = {each.pairs}", **beside)
    axes.set_yticks(range(len(comparisons)), [each.arm for each in comparisons])
    axes.set_ylim(len(comparisons) - 0.4, -0.6)
    axes.set_xlabel(f"difference in return from {reference} (filled: p < {LEVEL} after Holm)")
    axes.grid(axis="x")
    return figure


def dose_figure(
    comparisons: Sequence[Comparison], reference: str, doses: dict[str, float]
) -> Figure:
    """The difference from the reference by the powers ``doses`` of the factor, with intervals."""
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots()
    axes.axhline(0, color=GRAY, linewidth=1)
    points = [(doses[c.arm], c.difference) for c in comparisons if c.arm in doses]
    line = [(dose, difference.value) for dose, difference in points]
    if reference in doses:
        line.append((doses[reference], 0.0))
        axes.plot(doses[reference], 0, "D", color=GRAY, label=f"{reference} (reference)", zorder=4)
        axes.legend()
    axes.plot(*zip(*sorted(line), strict=True), color=BLUE, linewidth=1.2, alpha=0.6)
    for dose, (value, low, high) in points:
        axes.plot([dose, dose], [low, high], color=BLUE, linewidth=2.2)
        axes.plot(dose, value, "o", color=BLUE, markersize=7)
    # Powers differ by orders of magnitude, and may be negative.
    axes.set_xscale("symlog", linthresh=1)
    ticks = sorted({dose for dose, _ in line})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel(f"difference in return from {reference}")
    axes.set_xlabel("power β of the factor, P ∝ p^β (0: uniform, 1: the paper)")
    axes.grid()
    return figure


def _read_results(plan: Plan) -> pd.DataFrame:
    """The results of all finished forks of a plan, one row for each."""
    rows = []
    for moment in plan.moments:
        source, before = moment.source, moment.return_before
        for fork in moment.forks:
            if fork.is_finished and before is not None:
                place = (str(source.run_dir), source.seed, source.step, fork.arm.name, fork.draw)
                after = read_columns(fork.path / "eval.csv")["return_mean"][-1]
                rows.append((*place, before, after))
    return pd.DataFrame(rows, columns=COLUMNS)


@dataclass
class Comparison:
    """An arm compared with the reference, over the forks that both have finished."""

    arm: str
    after: float  # the mean return after the fork
    difference: Estimate  # the mean difference from the reference
    covers: dict[str, int]  # the levels with several units, which its interval covers: how many
    wins: float  # the fraction of pairs in which the arm is better; a tie counts half
    pairs: int
    units: str  # what a sign-flip test flips: seeds, checkpoints or draws
    unit_count: int  # how many of these there are
    p: float  # the p-value of this test
    corrected_p: float = math.nan  # p with Holm's correction over the arms


def compare(results: pd.DataFrame, arms: Sequence[str]) -> list[Comparison]:
    """Compares all arms but the first with the first.

    Differences are taken between forks of the same checkpoint and draw. Arms without such a pair
    are left out.
    """
    indexed = results.set_index(["seed", "at", "draw"]).sort_index()
    after = {arm: indexed["return_after"][indexed["arm"] == arm] for arm in arms}
    reference = after[arms[0]]
    comparisons = []
    for arm in arms[1:]:
        mine, other = after[arm].align(reference, join="inner")
        if len(mine):
            comparisons.append(_compared(arm, float(mine.mean()), mine - other))
    for each, corrected in zip(comparisons, holm([c.p for c in comparisons]), strict=True):
        each.corrected_p = corrected
    return comparisons


def _compared(arm: str, after: float, differences: pd.Series) -> Comparison:
    draws = differences.groupby(["seed", "at"])
    checkpoints = draws.mean().groupby("seed")
    # The test flips the signs of the highest level with enough units, or else of draws.
    levels = {"seed": checkpoints.mean(), "checkpoint": draws.mean(), "draw": differences}
    enough = [name for name, values in levels.items() if len(values) >= _ENOUGH_UNITS]
    units = [*enough, "draw"][0]
    most = (len(checkpoints), checkpoints.size().max(), draws.size().max())
    # A single pair has no interval.
    interval = hierarchical_interval(differences) if len(differences) > 1 else []
    return Comparison(
        arm=arm,
        after=after,
        difference=Estimate(float(checkpoints.mean().mean()), *interval),
        covers={name: count for name, count in zip(levels, most, strict=True) if count > 1},
        wins=float((differences > 0).mean() + 0.5 * (differences == 0).mean()),
        pairs=len(differences),
        units=units,
        unit_count=len(levels[units]),
        p=sign_flip_p(levels[units].to_numpy()),
    )


def hierarchical_interval(values: pd.Series, repetitions: int = 10_000) -> list[float]:
    """The 95 % percentile interval of the mean of values by ``seed``, ``at`` and draw.

    The draws of a checkpoint are averaged, then the checkpoints of a seed, then the seeds, so that
    every seed has the same weight. The bootstrap resamples seeds, then the checkpoints within each
    of them, then the draws within each of these.
    """
    generator = np.random.default_rng(0)
    resampled = _resampled_means(values, ["seed", "at"], repetitions, generator)
    return np.percentile(resampled, [2.5, 97.5]).tolist()


def _resampled_means(
    values: pd.Series, levels: list[str], count: int, generator: np.random.Generator
) -> np.ndarray:
    """The means of ``count`` independent bootstrap samples of the levels and of the draws."""
    parts = [part for _, part in values.groupby(levels[0])] if levels else []
    number = len(parts or values)
    chosen = generator.integers(number, size=(count, number))
    if not levels:
        return values.to_numpy()[chosen].mean(1)
    drawn = np.empty(chosen.shape)
    for i, part in enumerate(parts):
        places = chosen == i  # a part that is chosen twice is resampled twice
        drawn[places] = _resampled_means(part, levels[1:], int(places.sum()), generator)
    return drawn.mean(1)
