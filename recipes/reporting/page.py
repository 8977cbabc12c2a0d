"""Writes a report: which blocks it has, and in which order."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from pathlib import Path

from vmfer_recipes.config.errors import counted
from vmfer_recipes.reporting import pictures, tables
from vmfer_recipes.reporting.document import (
    Block,
    Heading,
    Listing,
    Paragraph,
    Picture,
    Table,
    to_html,
    to_markdown,
)
from vmfer_recipes.reporting.results import LEVEL, Average, Comparison, Study
from vmfer_recipes.reporting.statistics import REPETITIONS

__all__ = ["summary", "write_report"]

_TITLE = "Methods compared with their baselines"


def write_report(study: Study, folder: Path) -> list[Path]:
    """Writes ``report.md`` and ``report.html``, which are returned, ``tables/``, ``pictures/``."""
    blocks = _blocks(study)
    for name in ("tables", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _remove_earlier(folder)
    for table in [*(b for b in blocks if isinstance(b, Table)), tables.curve_table(study)]:
        table.write_csv(folder / "tables")
    for picture in (b for b in blocks if isinstance(b, Picture)):
        (folder / "pictures" / f"{picture.name}.png").write_bytes(picture.png)
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text(to_markdown(blocks, "pictures"), encoding="utf-8")
    page.write_text(to_html(blocks, _TITLE), encoding="utf-8")
    return [markdown, page]


def _remove_earlier(folder: Path) -> None:
    """Removes the tables and pictures of an earlier report, some of which this one may not have."""
    earlier = [folder / "tables" / f"{name}.csv" for name in tables.NAMES]
    for pattern in ("improvement_*.png", "curves_*.png"):
        earlier += (folder / "pictures").glob(pattern)
    for file in earlier:
        file.unlink(missing_ok=True)


def _blocks(study: Study) -> list[Block]:
    blocks: list[Block] = [Heading(1, _TITLE), Paragraph(_compared(study))]
    finding, *numbers = summary(study)
    blocks += [Paragraph(finding, strong=True), Listing(numbers)]
    blocks.append(Listing(_warnings(study), warning=True))
    # The average over a single task says no more than the row of the task.
    if any(len(average.comparisons) > 1 or average.paper for average in study.averages):
        blocks += [Heading(2, "Average improvement"), tables.average_table(study)]
    if study.comparisons:
        blocks.append(Heading(2, "Task by task"))
        blocks += [
            Picture(f"improvement_{_file_name(family)}", figure, text)
            for family, figure, text in pictures.improvement_figures(study)
        ]
        blocks.append(tables.comparison_table(study))
        blocks.append(tables.significance_table(study))
    blocks += [Heading(2, "Scores"), tables.score_table(study, "return")]
    blocks.append(tables.score_table(study, "success_rate"))
    blocks.append(Heading(2, "Learning curves"))
    for task in study.tasks:
        blocks.append(Heading(3, study.task_labels[task]))
        for family, figure, text in pictures.curve_figures(study, task):
            name = f"curves_{study.task_labels[task]}_{family}"
            blocks.append(Picture(_file_name(name), figure, text))
    speeds = tables.speed_table(study)
    blocks += [*([Heading(2, "Speed")] if speeds.rows else []), speeds]
    blocks.append(Heading(2, "What was left out"))
    if not (study.left_out or study.notes):
        blocks.append(Paragraph("Nothing: every run that was found is part of the numbers."))
    blocks += [
        Listing(study.notes),
        tables.left_out_table(study),
        Heading(2, "Runs"),
        tables.run_table(study),
    ]
    blocks += [Heading(2, "How to read this"), Listing(_EXPLANATIONS)]
    return blocks


def _compared(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells.values())
    tasks = "; ".join(study.task_labels[task] for task in study.tasks)
    methods = sorted({m for _, m in study.cells if not study.baseline.matches(m)}, key=study.order)
    names = dict.fromkeys(study.method_labels[method] for method in methods)
    return (
        f"Compared: {'; '.join(names) or '–'}, against the baseline {study.baseline}, on {tasks}. "
        f"{counted(runs, 'run')} included, {len(study.left_out)} left out."
    )


def summary(study: Study) -> list[str]:
    """The finding, and the numbers behind it; an average over tasks replaces those of its tasks."""
    averages = [average for average in study.averages if len(average.comparisons) > 1]
    covered = {id(comparison) for average in averages for comparison in average.comparisons}
    comparisons = [c for c in study.comparisons if id(c) not in covered]
    lines = [_finding([*averages, *comparisons])]
    for average in averages:
        lines.append(
            f"{study.method_labels[average.method]}, {average.place}: AUC "
            f"{average.improvement.shown('{:.0f} %')} of the baseline's, P(improvement) "
            f"{average.probability.shown('{:.2f}')}: {average.verdict}."
        )
    for comparison in comparisons:
        cell, improvement = comparison.cell, comparison.improvement
        numbers = [f"P(improvement) {comparison.probability.shown('{:.2f}')}"]
        if improvement is not None:
            numbers.insert(0, f"AUC {improvement.shown('{:.0f} %')} of the baseline's")
        corrected = "" if comparison.corrected_p == comparison.p_value else ", corrected "
        corrected += f"{comparison.corrected_p:.2g}" if corrected else ""
        lines.append(
            f"{study.method_labels[cell.method]}, {study.task_labels[cell.task]}: "
            f"{', '.join(numbers)}, p = {comparison.p_value:.2g}{corrected}: {comparison.verdict}. "
            f"{_smallest_effect(comparison)}"
        )
    return lines


def _finding(results: list[Average | Comparison]) -> str:
    count = Counter(result.verdict for result in results)
    if not count:
        return "Finding: none, because no finished method has a finished baseline."
    if count.keys() <= {"too few seeds", "undecided"}:
        return "Finding: no method is shown to differ from its baseline."
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
    return f"Finding: of {counted(len(results), 'comparison')}, {told}."


def _smallest_effect(comparison: Comparison) -> str:
    if math.isnan(comparison.detectable):
        return "The smallest detectable effect is unknown: neither method has two seeds."
    pattern = tables.number_format([comparison.cell.score_name])
    effect = f"a difference of {pattern.format(comparison.detectable)}"
    if comparison.is_ratio:
        digits = 2 if comparison.detectable < 10 else 0
        effect = f"a ratio of {comparison.detectable:,.{digits}f}"
    if comparison.too_few:
        return f"Even a t-test could have detected only {effect} or more."
    return f"These seeds could have detected {effect} or more."


def _warnings(study: Study) -> list[str]:
    warnings = []
    concerned = defaultdict(list)
    for comparison in study.comparisons:
        if comparison.too_few:
            cell = comparison.cell
            place = f"{study.method_labels[cell.method]} on {study.task_labels[cell.task]}"
            concerned[comparison.seeds, comparison.best_p].append(place)
    for (seeds, best_p), places in sorted(concerned.items()):
        warnings.append(
            f"{counted(seeds[0], 'seed')} against {seeds[1]} of the baseline are too few to detect "
            "a difference: even if every seed beat every seed of the baseline, the corrected "
            f"p-value would be {best_p:.2f} (two-sided permutation test). This concerns "
            f"{'; '.join(places)}."
        )
    fewest = min((len(c.runs) for c in study.cells.values() if c.complete), default=0)
    if 0 < fewest < 10 and study.comparisons:
        warnings.append(
            f"The smallest cell has {counted(fewest, 'seed')}. Below about ten, bootstrap "
            "intervals are too narrow: with five normally distributed seeds, the 95 % interval of "
            "the mean contains the true mean in about 84 % of cases. The permutation test is exact "
            "for any number of seeds."
        )
    return warnings


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", text).strip("_")


_EXPLANATIONS = (
    "A seed is one run. Its score is the area under its learning curve (AUC) by the trapezoidal "
    "rule, divided by the number of steps: the mean success rate over the run if the task "
    "reports one, and the mean return otherwise. until= sets the last step that counts.",
    "The final score is the mean of the evaluations in the last tenth of the run. It is "
    "noisier than the AUC and is not tested.",
    "IQM is the mean without the lowest and the highest quarter of the seeds; with fewer than four "
    "seeds, it is the mean.",
    f"Intervals are 95 % percentile intervals of {REPETITIONS:,} stratified bootstrap samples "
    "(rliable, fixed seed): the seeds of every method on every task are resampled. They describe "
    "other seeds on these tasks, not other tasks. Intervals of curves are pointwise.",
    "The paired difference is a secondary check that does not affect the verdict. If the same seed "
    "makes both runs easy or hard, its interval is narrower.",
    "The p-value is twice the fraction of all ways to divide the runs between the two methods that "
    "give at least as large a difference in the mean logarithm of the AUC, in the same direction.",
    f"A method that is called above or below its baseline has a corrected p-value below {LEVEL}. "
    "Among all comparisons of a task, the probability of one or more false verdicts is at most "
    f"{100 * LEVEL:.0f} %. The verdict of an average over tasks follows from the interval of "
    "P(improvement) instead, without correction.",
    "The smallest detectable effect would be found with a probability of 80 %. It follows from the "
    "pooled standard deviation of the log AUC and quantiles of Student's t distribution. An "
    "undecided comparison says nothing about smaller effects.",
    "If the runs of a cell were evaluated at different steps, they are interpolated linearly to "
    "the steps of the run with the fewest evaluations.",
    "A method is compared with the runs of the same algorithm that have the settings of the "
    "baseline and otherwise the same hyperparameters. The number of critics may differ, from "
    "two on, if critics beyond the second do not influence the baseline: in TD3, SAC, CrossQ and "
    "TD3+BC with a baseline that uses neither TD errors nor factors.",
)
