"""The report of forks: a table of paired differences, what it covers, and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vmfer_recipes.config.errors import UserError, counted
from vmfer_recipes.fork.plan import Plan
from vmfer_recipes.fork.results import (
    ENOUGH_UNITS,
    Comparison,
    Result,
    compare,
    write_results,
)
from vmfer_recipes.report.document import (
    Block,
    Heading,
    Listing,
    Paragraph,
    Picture,
    Table,
    Value,
    to_markdown,
)
from vmfer_recipes.report.inference import Estimate
from vmfer_recipes.run.files import replacing

__all__ = ["write_report"]

_FEW_UNITS = 5  # a bootstrap of fewer units underestimates their spread by more than 10 %


def write_report(plan: Plan, results: Sequence[Result]) -> list[str]:
    """Writes ``forks.csv``, ``forks.md`` and the figures. Returns the lines to print.

    Args:
        plan: all forks of the command.
        results: the results of those that are finished.
    """
    comparisons = compare(results, plan.arms)
    notes = _notes(plan, results, comparisons)
    table = _table(plan, results, comparisons)
    pictures = _pictures(plan, comparisons)
    blocks: list[Block] = [Heading(1, "Forks"), Paragraph(_question(plan))]
    blocks += [table, Listing(notes), *pictures]
    blocks += [Heading(2, "Checkpoint by checkpoint"), _checkpoint_table(plan, results)]
    files = [plan.out / "forks.csv", plan.out / "forks.md"]
    try:
        write_results(results, files[0])
        with replacing(files[1]) as file:
            file.write(to_markdown(blocks, "."))
        for picture in pictures:
            files.append(plan.out / f"{picture.name}.png")
            with replacing(files[-1], "wb") as file:
                file.write(picture.png)
    except OSError as error:
        raise UserError(f"{plan.out} cannot be written ({error}): choose another out=.") from error
    return [*_aligned(table), *(f"- {note}" for note in notes), *(f"  {file}" for file in files)]


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


def _table(plan: Plan, results: Sequence[Result], comparisons: Sequence[Comparison]) -> Table:
    reference = [r for r in results if r.arm == plan.arms[0].name]
    rows: list[dict[str, Value]] = []
    if reference:
        rows.append(
            {
                "arm": f"{plan.arms[0].name} (reference)",
                "return after": float(np.mean([r.return_after for r in reference])),
                "difference [95 %]": None,
                "better in": None,
                "pairs": None,
                "p": None,
                "p (Holm)": None,
            }
        )
    for each in comparisons:
        rows.append(
            {
                "arm": each.arm,
                "return after": each.after,
                "difference [95 %]": _shown(each.difference),
                "better in": each.wins,
                "pairs": each.pairs,
                "p": each.p,
                "p (Holm)": each.corrected_p,
            }
        )
    formats = {
        "return after": "{:.1f}",
        "better in": "{:.0%}",
        "p": "{:.3f}",
        "p (Holm)": "{:.3f}",
    }
    caption = (
        "Returns after the fork, as means over the finished forks, and their paired differences "
        "from the reference."
    )
    return Table("forks", caption, rows, formats)


def _shown(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return f"{estimate.value:+.1f} [–]"
    return f"{estimate.value:+.1f} [{estimate.low:+.1f}, {estimate.high:+.1f}]"


def _notes(plan: Plan, results: Sequence[Result], comparisons: Sequence[Comparison]) -> list[str]:
    """What intervals and p-values cover, and what they do not."""
    seeds = len({r.seed for r in results})
    moments = len({(r.seed, r.at) for r in results})
    notes = [
        f"{len(results):,} of {counted(len(plan.forks), 'fork')} are finished: "
        f"{counted(seeds, 'seed')}, {counted(moments, 'checkpoint')} in total, up to "
        f"{counted(plan.options.draws, 'draw')} of each."
    ]
    if not comparisons:
        return [*notes, "No arm can be paired with the reference yet."]
    covers = max((each.covers for each in comparisons), key=len)
    if not covers:
        notes.append("There are no intervals: each arm has a single pair.")
    else:
        words = ", then ".join(f"{level}s" for level in covers)
        few = min(each.top_count for each in comparisons)
        note = f"Intervals: hierarchical bootstrap over {words} (95 % percentiles)."
        if few < _FEW_UNITS:
            note += f" Intervals over {counted(few, covers[0])} are too narrow to rely on."
        notes.append(note)
    if seeds == 1:
        notes.append(
            "One seed: intervals and p-values describe the forks of this run only, not other runs."
        )
    units = {(each.units, each.unit_count) for each in comparisons}
    for name, count in sorted(units):
        least = 2.0 ** (1 - count)
        note = f"p-values: sign-flip test over {counted(count, name)}, the highest level with at "
        note += f"least {ENOUGH_UNITS} units; Holm's correction over {len(comparisons)} arms."
        if count < ENOUGH_UNITS:
            note = (
                f"p-values: sign-flip test over {counted(count, name)}, which is too few: "
                f"p cannot fall below {min(1.0, least):.3g}."
            )
        elif name != "seed" and seeds > 1:
            note += f" It covers only these {seeds} seeds."
        notes.append(note)
    return notes


def _checkpoint_table(plan: Plan, results: Sequence[Result]) -> Table:
    rows: list[dict[str, Value]] = []
    for moment in plan.moments:
        seed, step = moment.source.seed, moment.source.step
        of_moment = [r for r in results if (r.seed, r.at) == (seed, step)]
        if not of_moment:
            continue
        row: dict[str, Value] = {
            "seed": seed,
            "step": step,
            "before": of_moment[0].return_before,
        }
        for arm in plan.arms:
            after = [r.return_after for r in of_moment if r.arm == arm.name]
            row[arm.name] = float(np.mean(after)) if after else None
        rows.append(row)
    formats = dict.fromkeys(["before", *(arm.name for arm in plan.arms)], "{:.1f}")
    caption = "Return before the forks, and mean return after those of each arm."
    return Table("checkpoints", caption, rows, {"seed": "{}", **formats})


def _pictures(plan: Plan, comparisons: Sequence[Comparison]) -> list[Picture]:
    if not comparisons:
        return []
    try:
        from vmfer_recipes.fork.pictures import dose_figure, forest_figure
    except ImportError:
        print("No figures were drawn: they require matplotlib (`pip install matplotlib`).")
        return []
    reference = plan.arms[0].name
    pictures = [
        Picture(
            "forks",
            forest_figure(comparisons, reference),
            f"Difference in return from {reference}, with 95 % intervals.",
        )
    ]
    cfg = plan.moments[0].source.cfg
    doses = {arm.name: arm.dose(cfg) for arm in plan.arms}
    known = {name: dose for name, dose in doses.items() if dose is not None}
    if {*known.values()} - {0.0, 1.0} and len({*known.values()}) > 1:
        pictures.append(
            Picture(
                "dose",
                dose_figure(comparisons, reference, known),
                f"Difference in return from {reference}, by the power of the factor.",
            )
        )
    return pictures


def _aligned(table: Table) -> list[str]:
    """A table for the terminal."""
    lines = [table.columns]
    lines += [[table.shown(name, value) for name, value in row.items()] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
