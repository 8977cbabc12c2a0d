"""Writes a report: which blocks it has, and in which order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

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
from vmfer_recipes.reporting.methods import BASELINE
from vmfer_recipes.reporting.results import Average, Comparison, Study
from vmfer_recipes.reporting.statistics import REPETITIONS, best_possible_p
from vmfer_recipes.training.errors import counted

__all__ = ["write_report"]

_TITLE = "vMFER compared with its baselines"


def write_report(study: Study, folder: Path) -> list[Path]:
    """Writes ``report.md`` and ``report.html``, which are returned, ``tables/``, ``pictures/``."""
    blocks = _blocks(study)
    for name in ("tables", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for table in [*(b for b in blocks if isinstance(b, Table)), tables.curve_table(study)]:
        table.write_csv(folder / "tables")
    for picture in (b for b in blocks if isinstance(b, Picture)):
        (folder / "pictures" / f"{picture.name}.png").write_bytes(picture.png)
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text(to_markdown(blocks, "pictures"), encoding="utf-8")
    page.write_text(to_html(blocks, _TITLE), encoding="utf-8")
    return [markdown, page]


def _blocks(study: Study) -> list[Block]:
    blocks: list[Block] = [Heading(1, _TITLE), Paragraph(_compared(study))]
    blocks += [Paragraph(_finding(study), strong=True), Listing(_numbers(study))]
    blocks.append(Listing(_warnings(study), warning=True))
    if study.averages:
        blocks += [Heading(2, "Average improvement"), tables.average_table(study)]
        blocks += [
            Picture(f"improvement_{_file_name(family)}", figure, text)
            for family, figure, text in pictures.improvement_figures(study)
        ]
    if study.comparisons:
        blocks += [Heading(2, "Task by task"), tables.comparison_table(study)]
    blocks += [Heading(2, "Final scores"), tables.final_table(study, "return")]
    blocks.append(tables.final_table(study, "success_rate"))
    blocks.append(Heading(2, "Learning curves"))
    for task in study.tasks:
        blocks.append(Heading(3, study.task_labels[task]))
        for family, figure, text in pictures.curve_figures(study, task):
            name = f"curves_{study.task_labels[task]}_{family}"
            blocks.append(Picture(_file_name(name), figure, text))
    blocks += [Heading(2, "Speed"), tables.speed_table(study)]
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
    samplers = sorted({m.sampler for _, m in study.cells if m.sampler != BASELINE})
    families = sorted({m.family_label for _, m in study.cells})
    return (
        f"Compared: {' and '.join(families)} with sampler={', '.join(samplers) or '–'} against the "
        f"baseline sampler={BASELINE}, on {tasks}. {counted(runs, 'run')} in the numbers, "
        f"{len(study.left_out)} left out."
    )


def _finding(study: Study) -> str:
    results: list[Average | Comparison] = [*study.averages, *_without_percentage(study)]
    count = Counter(result.verdict for result in results)
    if not count:
        return "Finding: none, because no finished method has a finished baseline."
    if count.keys() <= {"too few seeds", "undecided"}:
        return "Finding: no method is shown to differ from its baseline."
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
    return f"Finding: of {counted(len(results), 'comparison')}, {told}."


def _numbers(study: Study) -> list[str]:
    """The numbers behind the finding; an average replaces those of its tasks."""
    lines = []
    for average in study.averages:
        place = study.task_labels[average.comparisons[0].cell.task]
        if len(average.comparisons) > 1:
            place = average.place
        lines.append(
            f"{study.method_labels[average.method]}, {place}: "
            f"{average.improvement.shown('{:.0f} %')} of the baseline's final score, "
            f"{_probability(average)}."
        )
    for comparison in _without_percentage(study):
        cell = comparison.cell
        place = study.task_labels[cell.task]
        lines.append(f"{study.method_labels[cell.method]}, {place}: {_probability(comparison)}.")
    return lines


def _without_percentage(study: Study) -> list[Comparison]:
    return [comparison for comparison in study.comparisons if comparison.improvement is None]


def _probability(result: Average | Comparison) -> str:
    return f"P(improvement) {result.probability.shown('{:.2f}')}: {result.verdict}"


def _warnings(study: Study) -> list[str]:
    warnings = []
    concerned = defaultdict(list)
    for comparison in study.comparisons:
        if comparison.too_few:
            cell = comparison.cell
            place = f"{study.method_labels[cell.method]} on {study.task_labels[cell.task]}"
            concerned[comparison.seeds].append(place)
    for seeds, places in sorted(concerned.items()):
        warnings.append(
            f"{counted(seeds[0], 'seed')} against {seeds[1]} of the baseline are too few to detect "
            "a difference: even if every seed beat every seed of the baseline, the p-value would "
            f"be {best_possible_p(seeds):.2f} (two-sided rank-sum test). This concerns "
            f"{'; '.join(places)}."
        )
    fewest = min((len(c.runs) for c in study.cells.values() if c.complete), default=0)
    if 0 < fewest < 10 and study.comparisons:
        warnings.append(
            f"The smallest cell has {counted(fewest, 'seed')}. Below about ten, bootstrap "
            "intervals are too narrow: with five normally distributed seeds, the 95 % interval of "
            "the mean contains the true mean in about 84 % of cases."
        )
    return warnings


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", text).strip("_")


_EXPLANATIONS = (
    "A seed is one run. Its score is the mean of its evaluations in the last tenth of the "
    "training: the success rate if the task reports one, and the return otherwise.",
    "IQM is the mean without the lowest and the highest quarter of the seeds; with fewer than four "
    "seeds, it is the mean.",
    f"Intervals are 95 % percentile intervals of {REPETITIONS:,} stratified bootstrap samples "
    "(rliable, fixed seed): the seeds of every method on every task are resampled. They describe "
    "other seeds on these tasks, not other tasks. Intervals of curves are pointwise.",
    "If the runs of a cell were evaluated at different steps, they are interpolated linearly to "
    "the steps of the run with the fewest evaluations.",
    "A method is compared with sampler=uniform with the same hyperparameters. Except for REDQ and "
    "TQC, the number of critics may differ, because critics beyond the second do not influence the "
    "baseline.",
    "Many comparisons are made at once: of twenty comparisons of equal methods, one interval is "
    "expected to miss the true value.",
)
